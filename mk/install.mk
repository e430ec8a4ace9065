# Installing: programs, manual pages, completion, units. Nothing below /etc or /var is touched: systemd makes those folders, the samples of
# configuration go to share/doc/ebb.

UNITS := $(wildcard deploy/systemd/*.service)
# a unit of a program that is not built is not installed
UNITS_OF = $(foreach b,$(notdir $(BIN)),$(filter deploy/systemd/$(b).service deploy/systemd/$(b)@.service,$(UNITS)))
SAMPLES := deploy/ebbd.yaml deploy/systemd/worker.env $(wildcard deploy/agent.yaml)

.PHONY: install
install: all man
	install -d $(DESTDIR)$(prefix)/bin $(DESTDIR)$(prefix)/share/man/man1 $(DESTDIR)$(prefix)/lib/systemd/system $(DESTDIR)$(prefix)/lib/sysusers.d \
	  $(DESTDIR)$(prefix)/share/bash-completion/completions $(DESTDIR)$(prefix)/share/zsh/site-functions $(DESTDIR)$(prefix)/share/doc/ebb
	install -m 755 $(BIN) $(DESTDIR)$(prefix)/bin
	install -m 644 $(B)/man/*.1 $(DESTDIR)$(prefix)/share/man/man1
	$(B)/bin/ebb completion bash >$(DESTDIR)$(prefix)/share/bash-completion/completions/ebb
	$(B)/bin/ebb completion zsh >$(DESTDIR)$(prefix)/share/zsh/site-functions/_ebb
	$(Q)set -e; for u in $(UNITS_OF); do sed 's|/usr/local/bin|$(prefix)/bin|' $$u >$(DESTDIR)$(prefix)/lib/systemd/system/$$(basename $$u); done
	install -m 644 deploy/systemd/ebb.sysusers $(DESTDIR)$(prefix)/lib/sysusers.d/ebb.conf
	install -m 644 README.md $(SAMPLES) $(DESTDIR)$(prefix)/share/doc/ebb
