# How things are built; what is built stands in the Makefile.

OBJ = $(patsubst %.c,$(B)/obj/%.o,$(1))
LIBS_OF = $(foreach l,$(1),$(B)/lib/lib$(l).a)

.DEFAULT_GOAL := all
.SUFFIXES:
.DELETE_ON_ERROR:

BIN := $(B)/bin/ebb $(B)/bin/ebbd $(B)/bin/ebb-worker $(B)/bin/ebb-agent
.PHONY: all
all: deps-hint $(BIN)

# A change of compiler or flags rebuilds ------------------------------------------------------------------------------------------
FLAGS_LINE = $(CC) $(CFLAGS) $(LDFLAGS)
$(B)/flags: force-flags
	@mkdir -p $(@D); echo '$(FLAGS_LINE)' | cmp -s - $@ || echo '$(FLAGS_LINE)' > $@
.PHONY: force-flags
force-flags:

.PHONY: deps-hint
deps-hint:
	@pkg-config --exists $(PKGS) && test -e /usr/include/rocksdb/c.h || \
	  { echo "some libraries are missing: run 'make deps' (installs Debian packages, needs root), or see docs/dependencies.md"; exit 1; }

# Messages -------------------------------------------------------------------------------------------------------------------------
$(B)/gen/wire/ebb.pb-c.c: $(PROTO)
	@mkdir -p $(@D)
	@echo '  PROTO $<'
	$(Q)protoc-c --c_out=$(B)/gen $<
$(B)/gen/wire/ebb.pb-c.h: $(B)/gen/wire/ebb.pb-c.c
$(B)/obj/gen/wire/ebb.pb-c.o: $(B)/gen/wire/ebb.pb-c.c $(B)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c17 $(OPT) -g -I$(B)/gen $(if $(SANITIZE),-fsanitize=$(SANITIZE)) -c $< -o $@

# ONNX: the schema is Debian's; what test directories hold besides tensors is ours
ONNX_PROTO ?= /usr/include/onnx/onnx.proto
ONNX_GEN := $(B)/gen/onnx/onnx.pb-c.h $(B)/gen/onnx/data.pb-c.h
$(B)/gen/onnx/onnx.pb-c.c: $(ONNX_PROTO)
	@mkdir -p $(@D)
	@echo '  PROTO $<'
	$(Q)protoc-c -I$(<D) --c_out=$(@D) $<
$(B)/gen/onnx/data.pb-c.c: workers/engine/onnx/data.proto $(ONNX_PROTO)
	@mkdir -p $(@D)
	@echo '  PROTO $<'
	$(Q)protoc-c -I$(dir $(ONNX_PROTO)) -I$(<D) --c_out=$(@D) $<
$(B)/gen/onnx/%.pb-c.h: $(B)/gen/onnx/%.pb-c.c ;
OBJ_onnx := $(B)/obj/gen/onnx/onnx.pb-c.o $(B)/obj/gen/onnx/data.pb-c.o
$(OBJ_onnx): $(B)/obj/%.o: $(B)/%.c $(B)/flags $(ONNX_GEN)
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c17 $(OPT) -g -I$(B)/gen/onnx $(if $(SANITIZE),-fsanitize=$(SANITIZE)) -c $< -o $@

# Objects --------------------------------------------------------------------------------------------------------------------------
$(B)/obj/%.o: %.c $(B)/flags | $(B)/gen/wire/ebb.pb-c.h $(ONNX_GEN)
	@mkdir -p $(@D)
	@echo '  CC    $<'
	$(Q)$(CC) $(CFLAGS) $(PKG_CFLAGS) -MMD -MP -c $< -o $@

# The kernels, once per instruction set: the same source, the same bits (docs/engine.md)
ISA_512        := -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mprefer-vector-width=512 -DISA_LEVEL=3
ISA_avx512bf16 := $(ISA_512) -mavx512vnni -mavx512bf16 -DEBB_VNNI -DEBB_BF16 -DISA=avx512bf16
ISA_avx512vnni := $(ISA_512) -mavx512vnni -DEBB_VNNI -DISA=avx512vnni
ISA_avx512     := $(ISA_512) -DISA=avx512
ISA_avx2vnni   := -O3 -mavx2 -mfma -mavxvnni -DEBB_VNNI -DISA=avx2vnni -DISA_LEVEL=2
ISA_avx2       := -O3 -mavx2 -mfma -DISA=avx2 -DISA_LEVEL=2
ISA_generic    := -O3 -DISA=generic -DISA_LEVEL=1
# Tests run the tables of levels 2 and 3 on any processor, with SIMDe in the place of the instructions
ISA_emulated512bf16 := -DEBB_EMULATE -DEBB_VNNI -DEBB_BF16 -DISA=emulated512bf16 -DISA_LEVEL=3 -Wno-psabi -Wno-maybe-uninitialized
ISA_emulated512     := -DEBB_EMULATE -DISA=emulated512 -DISA_LEVEL=3 -Wno-psabi -Wno-maybe-uninitialized
ISA_emulated256vnni := -DEBB_EMULATE -DEBB_VNNI -DISA=emulated256vnni -DISA_LEVEL=2 -Wno-psabi -Wno-maybe-uninitialized
ISAS_test := emulated512bf16 emulated512 emulated256vnni
OBJ_isa_test := $(foreach isa,$(ISAS_test),$(patsubst %.c,$(B)/obj/%.$(isa).o,$(SRC_isa)))
OBJ_isa := $(foreach isa,$(ISAS),$(patsubst %.c,$(B)/obj/%.$(isa).o,$(SRC_isa))) \
           $(foreach isa,$(ISAS_few),$(patsubst %.c,$(B)/obj/%.$(isa).o,$(SRC_isa_few)))
define ISA_RULE
$(B)/obj/%.$(1).o: %.c $(B)/flags
	@mkdir -p $$(@D)
	@echo '  CC    $$< ($(1))'
	$(Q)$(CC) $(CFLAGS) $(ISA_$(1)) -MMD -MP -MF $$(@:.o=.d) -c $$< -o $$@
endef
$(foreach isa,$(ISAS) $(ISAS_test),$(eval $(call ISA_RULE,$(isa))))

# Libraries ------------------------------------------------------------------------------------------------------------------------
define LIB_RULE
$(B)/lib/lib$(1).a: $(2)
	@mkdir -p $$(@D)
	@rm -f $$@
	$(Q)ar qcs $$@ $$^
endef
$(eval $(call LIB_RULE,base,$(call OBJ,$(SRC_base))))
$(eval $(call LIB_RULE,wire,$(call OBJ,$(SRC_wire)) $(B)/obj/gen/wire/ebb.pb-c.o))
$(eval $(call LIB_RULE,storage,$(call OBJ,$(SRC_storage))))
$(eval $(call LIB_RULE,scheduler,$(call OBJ,$(SRC_scheduler))))
$(eval $(call LIB_RULE,text,$(call OBJ,$(SRC_text))))
$(eval $(call LIB_RULE,image,$(call OBJ,$(SRC_image))))
$(eval $(call LIB_RULE,tensor_in,$(call OBJ,$(SRC_tensor_in))))
$(eval $(call LIB_RULE,engine,$(call OBJ,$(SRC_engine)) $(OBJ_isa) $(OBJ_onnx)))
$(eval $(call LIB_RULE,worker,$(call OBJ,$(filter-out %/main.c,$(SRC_worker)))))
$(eval $(call LIB_RULE,agent,$(call OBJ,$(filter-out %/main.c,$(SRC_agent)))))
$(eval $(call LIB_RULE,daemon,$(call OBJ,$(filter-out %/main.c,$(SRC_daemon)))))
$(eval $(call LIB_RULE,client,$(call OBJ,$(filter-out %/main.c,$(SRC_client)))))
# helpers of tests; an archive, so that each test takes only what it uses
$(eval $(call LIB_RULE,testlib,$(call OBJ,tests/lib/tinymodel.c tests/lib/onnxwrite.c tests/lib/files.c) $(OBJ_isa_test)))

LINK = @mkdir -p $(@D); echo '  LINK  $@'; $(CC) $(LDFLAGS) -o $@ $(1) -lm -lpthread
$(B)/bin/ebbd: $(B)/obj/daemon/main.o $(call LIBS_OF,daemon scheduler storage wire base)
	$(call LINK,$^ -luv -lzmq -lyaml -lsystemd -lmicrohttpd $(LIBS_storage) $(LIBS_wire))
$(B)/bin/ebb-worker: $(B)/obj/workers/main.o $(call LIBS_OF,worker tensor_in image engine text storage wire base)
	$(call LINK,$^ -lzmq -lsystemd $(LIBS_engine) $(LIBS_image) $(LIBS_text) $(LIBS_storage) $(LIBS_wire))
$(B)/bin/ebb-agent: $(B)/obj/workers/agent/main.o $(call LIBS_OF,agent wire base)
	$(call LINK,$^ -lzmq -lyaml -lsystemd $(LIBS_wire))
$(B)/bin/ebb: $(B)/obj/client/main.o $(call LIBS_OF,client scheduler engine text storage wire base)
	$(call LINK,$^ -lzmq -lyaml $(LIBS_engine) $(LIBS_text) $(LIBS_storage) $(LIBS_wire))

# Tests ----------------------------------------------------------------------------------------------------------------------------
# Every tests/unit/**/NAME_test.c is one cmocka program. Its folder names what it links: tests/unit/storage/x_test.c links storage.
TESTS_base      := $(wildcard tests/unit/base/*_test.c)
TESTS_wire      := $(wildcard tests/unit/wire/*_test.c)
TESTS_storage   := $(wildcard tests/unit/storage/*_test.c)
TESTS_scheduler := $(wildcard tests/unit/scheduler/*_test.c)
TESTS_text      := $(wildcard tests/unit/text/*_test.c)
TESTS_image     := $(wildcard tests/unit/image/*_test.c)
TESTS_tensor_in := $(wildcard tests/unit/tensor_in/*_test.c)
TESTS_engine    := $(wildcard tests/unit/engine/*_test.c)
TESTS_graph     := $(wildcard tests/unit/graph/*_test.c)
TESTS_worker    := $(wildcard tests/unit/worker/*_test.c)
TESTS_agent     := $(wildcard tests/unit/agent/*_test.c)
TESTS_command   := $(wildcard tests/unit/command/*_test.c)
TESTS_daemon    := $(wildcard tests/unit/daemon/*_test.c)
TESTS_client    := $(wildcard tests/unit/client/*_test.c)
define TEST_RULE
$(B)/tests/unit/$(1)/%_test: $(B)/obj/tests/unit/$(1)/%_test.o $(call LIBS_OF,testlib $(2) base)
	$$(call LINK,$$^ -lcmocka $(3))
UNIT_TESTS += $(patsubst %.c,$(B)/%,$(TESTS_$(1)))
endef
$(B)/bench/engine: $(B)/obj/bench/engine.o $(call LIBS_OF,engine storage base)
	$(call LINK,$^ $(LIBS_engine) $(LIBS_storage))
# a tiny random model for shell tests: build/tests/mkmodel DIR [seed] [hidden] [layers] [vocab]
$(B)/tests/mkmodel: $(B)/obj/tests/lib/mkmodel.o $(call LIBS_OF,testlib)
	$(call LINK,$^)
# workers by the thousand that only say hello: build/tests/crowd ENDPOINT COUNT
$(B)/tests/crowd: $(B)/obj/tests/lib/crowd.o $(call LIBS_OF,wire base)
	$(call LINK,$^ -lzmq $(LIBS_wire))
# a peer that means harm
$(B)/tests/hostile: $(B)/obj/tests/lib/hostile.o $(call LIBS_OF,wire base)
	$(call LINK,$^ -lzmq $(LIBS_wire))
TEST_TOOLS := $(B)/tests/mkmodel $(B)/tests/crowd $(B)/tests/hostile
# the simulator over the real core, and the same over a core in which bugs can be planted
SIM_TESTS := $(B)/tests/sim $(B)/tests/sim_mutants $(B)/tests/sim_elastic
OBJ_sim := $(call OBJ,tests/sim/sim.c tests/sim/net.c tests/sim/daemon.c tests/sim/worker.c tests/sim/image.c tests/sim/provider.c tests/sim/gang.c)
OBJ_mutants := $(patsubst %.c,$(B)/obj-mutants/%.o,$(SRC_scheduler))
$(B)/tests/sim: $(call OBJ,tests/sim/main.c) $(OBJ_sim) $(call LIBS_OF,scheduler base)
	$(call LINK,$^)
$(B)/tests/sim_elastic: $(call OBJ,tests/sim/elastic_main.c tests/sim/elastic.c tests/sim/elastic_worker.c tests/sim/elastic_world.c tests/sim/gang_pool.c) $(call LIBS_OF,scheduler base)
	$(call LINK,$^)
$(B)/tests/sim_mutants: $(call OBJ,tests/sim/mutants.c) $(OBJ_sim) $(OBJ_mutants) $(call LIBS_OF,base)
	$(call LINK,$^)
$(B)/obj-mutants/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	@echo '  CC    $< (mutants)'
	$(Q)$(CC) $(CFLAGS) -DSCHED_MUTANTS -MMD -MP -c $< -o $@
$(B)/bench/elastic: $(call OBJ,bench/elastic.c tests/sim/elastic.c tests/sim/elastic_worker.c tests/sim/elastic_world.c) $(call LIBS_OF,scheduler base)
	$(call LINK,$^)
$(B)/bench/gangs: $(call OBJ,bench/gangs.c tests/sim/gang_pool.c) $(call LIBS_OF,scheduler base)
	$(call LINK,$^)
$(B)/bench/dispatch: $(call OBJ,bench/dispatch.c) $(call LIBS_OF,storage wire base) | $(B)/bin/ebbd
	$(call LINK,$(filter %.o %.a,$^) $(LIBS_storage) $(LIBS_wire))
ALL_LIBS := -luv -lzmq -lyaml -lsystemd -lmicrohttpd $(LIBS_engine) $(LIBS_text) $(LIBS_image) $(LIBS_storage) $(LIBS_wire)
$(B)/bench/tools/relay_reader: $(call OBJ,bench/tools/relay_reader.c) $(call LIBS_OF,worker tensor_in image engine text storage wire base)
	$(call LINK,$^ $(ALL_LIBS))
$(eval $(call TEST_RULE,base,,))
$(eval $(call TEST_RULE,wire,wire,-lzmq $(LIBS_wire)))
$(eval $(call TEST_RULE,storage,storage,$(LIBS_storage)))
$(eval $(call TEST_RULE,scheduler,scheduler,))
$(eval $(call TEST_RULE,text,text,$(LIBS_text)))
$(eval $(call TEST_RULE,image,image storage,$(LIBS_image) $(LIBS_storage)))
$(eval $(call TEST_RULE,tensor_in,tensor_in image engine storage,$(LIBS_engine) $(LIBS_image) $(LIBS_storage)))
$(eval $(call TEST_RULE,engine,engine text storage,$(LIBS_engine) $(LIBS_text) $(LIBS_storage)))
$(eval $(call TEST_RULE,graph,engine text storage,$(LIBS_engine) $(LIBS_text) $(LIBS_storage)))
$(eval $(call TEST_RULE,worker,worker tensor_in image engine text storage wire,$(ALL_LIBS)))
$(eval $(call TEST_RULE,command,worker storage wire,$(LIBS_storage) $(LIBS_wire)))
$(eval $(call TEST_RULE,agent,agent wire,-lzmq -lyaml -lsystemd $(LIBS_wire)))
$(eval $(call TEST_RULE,daemon,daemon scheduler storage wire,$(ALL_LIBS)))
$(B)/tests/unit/daemon/ebbd_test $(B)/tests/unit/daemon/agents_test $(B)/tests/unit/daemon/stage_test: | $(B)/bin/ebbd
$(eval $(call TEST_RULE,client,client scheduler engine text storage wire,$(ALL_LIBS)))

# What the tables of options say, as manual pages and as completion for shells --------------------------------------------------------
.PHONY: man completion
man: $(BIN)
	@mkdir -p $(B)/man
	$(Q)set -e; $(B)/bin/ebb --man > $(B)/man/ebb.1; \
	  $(B)/bin/ebb completion commands | while read -r c; do $(B)/bin/ebb $$c --man > "$(B)/man/ebb-$$(echo $$c | tr ' ' -).1"; done; \
	  for p in ebbd ebb-worker ebb-agent; do $(B)/bin/$$p --man > $(B)/man/$$p.1; done
completion: $(B)/bin/ebb
	$(Q)$(B)/bin/ebb completion bash > deploy/completion/ebb.bash
	$(Q)$(B)/bin/ebb completion zsh > deploy/completion/_ebb

.PHONY: unit clean
unit: $(UNIT_TESTS)
	$(Q)set -e; for t in $(UNIT_TESTS); do echo "  TEST  $$t"; $$t; done
clean:
	rm -rf build build-*

.SECONDARY:
-include $(shell find $(B)/obj $(B)/obj-mutants -name '*.d' 2>/dev/null)
