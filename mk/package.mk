# Debian packages: `make deb` puts them into $(B)/deb. They are made of what this tree has built ($(B)), so that a second `make deb` takes seconds.

VERSION := $(shell sed -n 's/^\#define EBBD_VERSION "\(.*\)"/\1/p' daemon/config.h)
DEB_STAGE := $(B)/deb/ebb-$(VERSION)

.PHONY: deb
deb: all man
	$(Q)command -v dh >/dev/null || { echo "debhelper is missing: apt-get install debhelper"; exit 1; }
	$(Q)grep -q '^ebb ($(VERSION)) ' deploy/debian/changelog || { echo "deploy/debian/changelog does not begin with version $(VERSION)"; exit 1; }
	$(Q)rm -rf $(B)/deb && mkdir -p $(DEB_STAGE)/debian && cp -a deploy/debian/. $(DEB_STAGE)/debian/
	@echo '  DEB   $(B)/deb'
	$(Q)cd $(DEB_STAGE) && EBB_TOP='$(CURDIR)' EBB_MAKE_ARGS='B=$(B) CC="$(CC)" OPT=$(OPT) SANITIZE=$(SANITIZE)' \
	  dpkg-buildpackage -b -us -uc -nc >../build.log 2>&1 || { tail -n 40 ../build.log; exit 1; }
	$(Q)ls $(B)/deb/*.deb
