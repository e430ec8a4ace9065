# ebb: build, check, demo, install
#
#   make                 builds build/bin/{ebb,ebbd,ebb-worker,ebb-agent}
#   make check           installs what is missing, builds, and runs every test
#   make demo            embeds 117,659 real sentences with a real model and shows nearest neighbours
#   make install         DESTDIR= prefix=/usr/local
#   make deb             Debian packages, in build/deb
#   make soak | fuzz | bench | valgrind     longer runs; not part of check
#
# Knobs (a change of any rebuilds what it concerns):
#   SANITIZE=address,undefined | thread    instrumented build in build-SANITIZE/
#   OPT=-O2                                optimisation
#   WERROR=1                               warnings are errors (set when CI=true)
#   JOBS=N                                 what make check builds and runs at once; default: number of processors
#   V=1                                    show commands

CC       ?= gcc
OPT      ?= -O2
SANITIZE ?=
V        ?=
JOBS     ?= $(shell nproc)
prefix   ?= /usr/local
DESTDIR  ?=
CI       ?=
WERROR   ?= $(if $(filter true,$(CI)),1,)

comma := ,
B := build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
Q := $(if $(V),,@)

PKGS     := libuv libzmq jansson yaml-0.1 libprotobuf-c libzstd zlib libxxhash libutf8proc libpcre2-8 libsodium libsystemd libmicrohttpd
# "make" must be able to say what is missing before pkg-config knows it
CFLAGS   := -std=c17 $(OPT) -g -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
            -ffp-contract=off -fno-math-errno -D_GNU_SOURCE -I. -I$(B)/gen $(if $(WERROR),-Werror) \
            $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
PKG_CFLAGS = $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LDFLAGS  := $(if $(SANITIZE),-fsanitize=$(SANITIZE))
LIBS_base    := -lm -lpthread
LIBS_wire    := -lprotobuf-c -lzmq -ljansson -lyaml -lsodium
LIBS_storage := -lrocksdb -lzstd -lz -lxxhash -ljansson
LIBS_engine  := -lopenblas -lprotobuf-c -lxxhash -ljansson -lutf8proc
LIBS_text    := -lutf8proc -lpcre2-8 -ljansson
LIBS_image   := -ljpeg -lspng -lwebp -lwebpdemux -ljansson

# Sources, in the order in which a record flows ---------------------------------------------------------------------------------
SRC_base := base/status.c base/mem.c base/buf.c base/log.c base/clock.c base/ftoa.c base/units.c base/opt.c base/suggest.c \
            base/fault.c base/path.c base/sight.c base/host.c base/layout.c base/provider_id.c base/when.c
SRC_wire := wire/wire.c wire/keys.c wire/invite.c wire/sock.c wire/join.c wire/blackbox.c wire/process.c wire/settings.c wire/jobspec.c wire/jobspec_flags.c wire/jobspec_yaml.c wire/jobspec_json.c wire/condition.c wire/jobspec_steps.c
PROTO    := wire/ebb.proto
SRC_storage   := storage/walk.c storage/source.c storage/dataset.c storage/inflate.c storage/utf8.c storage/lines.c storage/csv.c storage/json.c \
                 storage/npy.c storage/below.c storage/fixed.c storage/reader.c storage/record.c \
                 storage/key.c storage/rowcodec.c storage/rows.c storage/store.c storage/store_rocks.c storage/store_mem.c \
                 storage/errline.c storage/part.c storage/output.c storage/outfiles.c storage/overlap.c storage/errwalk.c storage/asmstate.c \
                 storage/assemble.c storage/merge.c storage/finish.c storage/asmerrors.c storage/manifest.c storage/onnxdir.c storage/modeldir.c
SRC_scheduler := scheduler/core.c scheduler/ledger.c scheduler/span.c scheduler/lease.c scheduler/lease_commit.c scheduler/lease_cut.c \
                 scheduler/job.c scheduler/worker.c scheduler/share.c scheduler/gang.c scheduler/gang_tend.c scheduler/gang_form.c scheduler/gang_plan.c scheduler/gang_view.c \
                 scheduler/blame.c scheduler/scale.c scheduler/scale_job.c scheduler/view.c scheduler/sched.c \
                 scheduler/plan_graph.c scheduler/plan_exact.c scheduler/plan_price.c scheduler/plan.c scheduler/slices.c
SRC_text   := workers/text/unicode.c workers/text/unicode_tables.c workers/text/charsmap.c workers/text/normalize.c workers/text/trace.c \
              workers/text/pattern.c workers/text/normal.c workers/text/scan.c workers/text/split.c workers/text/trie.c workers/text/vocab.c \
              workers/text/wordpiece.c workers/text/bpe.c workers/text/unigram.c workers/text/added.c workers/text/find.c \
              workers/text/load.c workers/text/load_model.c workers/text/load_parts.c workers/text/load_post.c \
              workers/text/stream.c workers/text/encode.c workers/text/tokenizer.c
SRC_engine := workers/engine/cpuinfo.c workers/engine/cpu/reference.c workers/engine/safetensors.c workers/engine/config.c \
              workers/engine/ops/embed.c workers/engine/ops/linear.c workers/engine/ops/attention.c workers/engine/ops/norm.c \
              workers/engine/ops/pool.c workers/engine/family.c workers/engine/modules.c workers/engine/loading.c \
              workers/engine/relative.c workers/engine/encoder.c workers/engine/scores.c workers/engine/head.c workers/engine/precision.c workers/engine/peak.c workers/engine/model.c
SRC_image  := workers/image/exif.c workers/image/jpeg.c workers/image/png.c workers/image/webp.c workers/image/image.c \
              workers/image/resize.c workers/image/spec.c workers/image/prepare.c workers/image/fetch.c
SRC_graph  := workers/engine/graph/dtype.c workers/engine/graph/sym.c workers/engine/graph/tensor.c workers/engine/graph/op.c \
              workers/engine/graph/graph.c workers/engine/graph/inline.c workers/engine/graph/widen.c workers/engine/graph/batch.c workers/engine/graph/order.c workers/engine/graph/finish.c workers/engine/graph/pool.c workers/engine/graph/run_memory.c workers/engine/graph/run_node.c workers/engine/graph/run.c \
              workers/engine/graph/rewrite.c workers/engine/graph/uniform.c workers/engine/graph/fuse.c workers/engine/graph/fuse_norm.c \
              workers/engine/graph/fuse_act.c workers/engine/graph/fuse_conv.c workers/engine/graph/fuse_attention.c \
              workers/engine/graph/fuse_linear.c workers/engine/graph/fuse_quant.c workers/engine/graph/fuse_sequence.c workers/engine/graph/pack.c workers/engine/graph/segment.c workers/engine/graph/part.c
SRC_ops    := workers/engine/ops/fused_linear.c workers/engine/ops/fused_attention.c workers/engine/ops/sequence_pool.c \
              workers/engine/ops/registry.c workers/engine/ops/identity.c workers/engine/ops/constant.c \
              workers/engine/ops/bodies.c workers/engine/ops/control.c workers/engine/ops/scan.c workers/engine/ops/sequence.c workers/engine/ops/optional.c
# the generic ops, and what they share
SRC_generic := workers/engine/ops/args.c workers/engine/ops/walk.c workers/engine/ops/unary.c workers/engine/ops/binary.c \
              workers/engine/ops/arith.c workers/engine/ops/compare.c workers/engine/ops/variadic.c workers/engine/ops/where.c \
              workers/engine/ops/cast.c workers/engine/ops/clip.c workers/engine/ops/reshape.c workers/engine/ops/transpose.c \
              workers/engine/ops/concat.c workers/engine/ops/slice.c workers/engine/ops/gather.c workers/engine/ops/scatter.c \
              workers/engine/ops/expand.c workers/engine/ops/pad.c workers/engine/ops/shapes.c workers/engine/ops/nonzero.c \
              workers/engine/ops/layout.c workers/engine/ops/reduce.c workers/engine/ops/softmax.c workers/engine/ops/topk.c \
              workers/engine/ops/product.c workers/engine/ops/matmul.c workers/engine/ops/gemm.c workers/engine/ops/einsum.c \
              workers/engine/ops/det.c workers/engine/ops/nms.c workers/engine/ops/crop.c workers/engine/ops/strings.c
SRC_onnx   := workers/engine/onnx/scan.c workers/engine/onnx/tensor.c workers/engine/onnx/load.c workers/engine/onnx/data.c workers/engine/carry.c workers/engine/graphmodel.c workers/engine/graphlane.c workers/engine/graphstage.c workers/engine/onnxtext.c workers/engine/onnxarrays.c
SRC_engine += $(SRC_graph) $(SRC_ops) $(SRC_generic) $(SRC_onnx)
# packed weights on disk; where a model can be cut
SRC_engine += workers/engine/packfile.c workers/engine/packfile_write.c workers/engine/window.c workers/engine/fit.c workers/engine/describe.c workers/engine/cut.c workers/engine/profile.c
SRC_tensor_in := workers/tensor_in/elements.c workers/tensor_in/json.c workers/tensor_in/npy.c workers/tensor_in/feed.c
# compiled once per instruction set, see the rule below
SRC_isa    := workers/engine/cpu/products.c workers/engine/cpu/finish.c workers/engine/cpu/attention.c workers/engine/cpu/rows.c \
              workers/engine/cpu/table.c
# ops of images and sequences, and what they share
SRC_engine += workers/engine/ops/ml.c workers/engine/ops/trees.c workers/engine/ops/ml_linear.c workers/engine/ops/ml_prepare.c
SRC_engine += workers/engine/ops/attention_ms.c workers/engine/ops/attention_gqa.c workers/engine/ops/fused_ms.c
SRC_engine += workers/engine/ops/sdpa.c workers/engine/ops/attention_std.c workers/engine/ops/rotary.c
SRC_engine += workers/engine/ops/signal.c
SRC_engine += workers/engine/ops/grid_sample.c workers/engine/ops/roi.c workers/engine/ops/col2im.c
SRC_engine += workers/engine/ops/panel.c workers/engine/ops/rnn.c
SRC_engine += workers/engine/cpu/conv_reference.c workers/engine/ops/wide.c workers/engine/ops/space.c workers/engine/ops/acts.c \
              workers/engine/ops/conv.c workers/engine/ops/conv_transpose.c workers/engine/ops/pooling.c workers/engine/ops/global_pool.c \
              workers/engine/ops/max_unpool.c workers/engine/ops/channel_norm.c workers/engine/ops/layer_norm.c workers/engine/ops/lrn.c \
              workers/engine/ops/quantize.c workers/engine/ops/quant.c workers/engine/ops/mm.c workers/engine/ops/qmatmul.c \
              workers/engine/ops/qconv.c workers/engine/ops/qlinear.c workers/engine/ops/resize.c
ISAS       := avx512bf16 avx512vnni avx512 avx2vnni avx2 generic
# those that need no more than these three
SRC_isa_few := workers/engine/cpu/conv.c workers/engine/cpu/conv_int.c
ISAS_few    := avx512 avx2 generic
SRC_worker := workers/link.c workers/outbox.c workers/remote/remote.c workers/remote/roots.c workers/remote/stream.c workers/remote/upload.c \
              workers/remote/taker.c workers/remote/model.c workers/remote/giver.c workers/service.c workers/pipeline/read.c workers/pipeline/prepare.c workers/pipeline/infer.c workers/pipeline/testhook.c \
              workers/pipeline/encode.c workers/pipeline/write.c workers/pipeline/queue.c workers/pipeline/held.c workers/pipeline/job.c \
              workers/pipeline/record_json.c workers/pipeline/steps_model.c workers/pipeline/steps_command.c workers/pipeline/steps_unit.c workers/pipeline/steps.c \
              workers/pipeline/models.c workers/pipeline/cut.c workers/pipeline/pipeline.c workers/main.c
# the worker's side of pipelines over several workers
SRC_worker += workers/group/message.c workers/group/carrier.c workers/group/runner.c workers/group/sends.c workers/group/cost.c workers/group/drag.c workers/group/ways.c workers/group/loader.c workers/group/group.c
SRC_engine += workers/engine/slow.c
SRC_worker += workers/command/answer.c workers/command/noise.c workers/command/spawn.c workers/command/child.c workers/command/quiet.c workers/command/deal.c workers/command/fate.c workers/command/command.c
SRC_agent  := workers/agent/calendar.c workers/agent/policy.c workers/agent/people.c workers/agent/watch.c workers/agent/cgroup.c workers/agent/family.c workers/agent/guests.c \
              workers/agent/talk.c workers/agent/config.c workers/agent/agent.c workers/agent/status.c workers/agent/main.c
SRC_daemon := daemon/config.c daemon/words.c daemon/map.c daemon/loop.c daemon/apply.c daemon/link.c daemon/link_send.c daemon/link_said.c daemon/link_stage.c daemon/gangs.c daemon/keyring.c daemon/auth.c daemon/auth_watch.c daemon/auth_edit.c \
              daemon/api.c daemon/reads.c daemon/job.c daemon/job_steps.c daemon/submit.c \
              daemon/publish.c daemon/relay_open.c daemon/relay.c daemon/relay_ask.c daemon/relay_read.c daemon/relay_write.c daemon/relay_model.c daemon/sweep.c daemon/provider.c daemon/local.c daemon/local_ended.c daemon/agents.c daemon/agents_said.c daemon/slurm_words.c daemon/slurm_run.c daemon/slurm_jobs.c daemon/slurm_end.c \
              daemon/slurm.c daemon/kubernetes.c daemon/guard.c daemon/owner.c daemon/metrics.c daemon/http.c daemon/main.c
SRC_client := client/say.c client/connect.c client/private.c client/spec.c client/local.c client/local_steps.c client/measure.c client/measure_arrays.c client/progress.c client/follow.c \
              client/run.c client/check.c client/submit.c client/jobs.c client/status.c client/why.c client/watch.c client/errors.c \
              client/results.c client/control.c client/workers.c client/keygen.c client/invite.c client/nodes.c client/top_draw.c client/top.c client/model.c client/model_test.c client/plan_file.c client/model_plan.c client/model_plan_dir.c client/doctor.c client/completion.c client/commands.c client/main.c

include mk/rules.mk
include mk/check.mk
include mk/install.mk
include mk/package.mk

# loops over elements: what the compiler makes of them matters; a comparison that meets NaN raises no trap that anyone looks at
$(call OBJ,$(SRC_generic)): private CFLAGS += $(if $(filter -O2,$(OPT)),-O3) -fno-trapping-math

# drives the real program
$(B)/tests/unit/worker/worker_test $(B)/tests/unit/worker/group_test: | $(B)/bin/ebb-worker
$(call OBJ,workers/engine/ops/channel_norm.c workers/engine/ops/pooling.c workers/engine/ops/resize.c workers/engine/ops/quantize.c \
  workers/engine/ops/quant.c workers/engine/ops/qmatmul.c workers/engine/ops/qconv.c workers/engine/ops/qlinear.c workers/engine/ops/rnn.c \
  workers/engine/ops/layer_norm.c): private CFLAGS += $(if $(filter -O2,$(OPT)),-O3) -fno-trapping-math
# vectors that the processor may not have, emulated
$(B)/obj/tests/unit/engine/conv_test.o: CFLAGS += -Wno-psabi
