# The tests in C: unit, model and conformance tests, and what benchmarks share with
# them.  Included by the Makefile.
#
# Each is linked with libraries of all sources, of which the linker takes what the
# test needs.  What stands in for the server or for a device comes before them:
# name it below.  A test that includes a source has that source's symbols already.
# Headers in test/unit/instead stand in for those of the same name.

UNIT_TESTS := $(wildcard test/unit/test_*.c test/model/test_*.c test/conformance/test_*.c)
UNIT_NAMES := $(notdir $(UNIT_TESTS:.c=))

# test_NAME: sources that only this one, or only some, are linked with.
UNIT_DIRECTORY = test/unit/directory_check.c
UNIT_ASSERT = test/unit/mock_assert.c
UNIT_SERVER = test/unit/mock_server.c $(UNIT_ASSERT)
UNIT_VERBS = test/unit/mock_verbs.c test/unit/mock_rdmacm.c
UNIT_VERBS_PEER = $(UNIT_VERBS) test/unit/verbs_donor.c test/unit/verbs_under_test.c

test_directory_WITH = $(UNIT_DIRECTORY)
test_directory_killed_WITH = $(UNIT_DIRECTORY)
test_directory_model_WITH = $(UNIT_DIRECTORY)
test_directory_policy_WITH = $(UNIT_DIRECTORY)
test_directory_reopen_WITH = $(UNIT_DIRECTORY)
test_directory_threads_WITH = $(UNIT_DIRECTORY)
test_image_WITH = $(UNIT_DIRECTORY) $(UNIT_ASSERT)
test_kept_WITH = $(UNIT_ASSERT)
test_s3fifo_WITH = $(UNIT_DIRECTORY)
test_counter_table_WITH = $(UNIT_SERVER)
test_lease_apply_WITH = $(UNIT_SERVER)
test_lease_broker_WITH = $(UNIT_SERVER)
test_lease_names_WITH = $(UNIT_SERVER)
test_lease_requests_WITH = $(UNIT_SERVER)
test_lease_switch_WITH = $(UNIT_SERVER)
test_ahead_WITH = $(UNIT_SERVER)
test_breaker_WITH = $(UNIT_SERVER)
test_link_WITH = $(UNIT_SERVER)
test_remote_WITH = $(UNIT_SERVER)
test_spill_WITH = $(UNIT_SERVER)
test_spill_slots_WITH = $(UNIT_SERVER)
test_spill_table_WITH = test/unit/spill_table_check.c
test_tier_WITH = $(UNIT_SERVER) $(UNIT_DIRECTORY)
lease_upkeep_WITH = $(UNIT_SERVER)
test_donor_verbs_WITH = $(UNIT_VERBS)
test_verbs_connect_WITH = $(UNIT_VERBS_PEER)
test_verbs_errors_WITH = $(UNIT_VERBS_PEER)
test_verbs_io_WITH = $(UNIT_VERBS_PEER)
card_check_WITH = test/bench/bench_common.c
test_fuzz_WITH = $(wildcard test/fuzz/fuzz_*.c)
test_transports_WITH = $(filter-out $(UNIT_TESTS),$(wildcard test/conformance/*.c))

UNIT_PACKAGES := $(sort $(MODULE_PACKAGES) $(PROGRAM_PACKAGES) $(ctl_PACKAGES))
UNIT_CFLAGS = -std=gnu11 -g -O1 -fno-omit-frame-pointer -pthread $(RBP_WARNINGS) \
	-Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers
UNIT_CPPFLAGS = -D_GNU_SOURCE -DRBP_UNIT_TEST -DUSE_ASSERT_CHECKING \
	$(RBP_DEFINES) -I. -Itest/unit/instead -Isrc -Itest/unit \
	-isystem $(shell $(PG_CONFIG) --includedir-server) \
	$(shell pkg-config --cflags $(UNIT_PACKAGES))
UNIT_LIBS = -L$(shell $(PG_CONFIG) --pkglibdir) -Wl,--as-needed -lpgcommon -lpgport \
	$(shell pkg-config --libs $(UNIT_PACKAGES)) -lm

# unit: with sanitizers; plain: without, for what is measured, or runs elsewhere.
unit_FLAGS = -fsanitize=address,undefined -fno-sanitize-recover=undefined
plain_FLAGS =

UNIT_SOURCES := $(filter-out %/main.c,$(sort $(MODULE_SOURCES) $(PROGRAM_SOURCES) $(FAULT_SOURCES)))
PLAIN_PROGRAMS := test/bench/lease_upkeep.c test/demo/drop_cache.c test/conformance/test_transports.c \
	test/card_check/card_check.c

card-check-build: all build/plain/card_check build/plain/test_transports
card-check: card-check-build
	@test/card_check/run both
.PHONY: card-check card-check-build

# these have flags and an order of their sources of their own; here they are seen to compile
unit-build: $(UNIT_NAMES:%=build/unit/%) build/plain/lease_upkeep build/plain/test/bench/hot_scan.o build/plain/test/bench/kept_cost.o
.PHONY: unit-build

define unit_variant
build/$(1)/%.o: %.c Makefile test/unit.mk build/flags
	@$$(MKDIR_P) $$(@D)
	$$(CC) $$(UNIT_CFLAGS) $$($(1)_FLAGS) $$(UNIT_CPPFLAGS) -MMD -MP -c -o $$@ $$<

build/$(1)/libsources.a: $$(UNIT_SOURCES:%.c=build/$(1)/%.o)
	rm -f $$@
	$$(AR) qcs $$@ $$^
endef
$(foreach v,unit plain,$(eval $(call unit_variant,$(v))))

# unit_rule VARIANT,SOURCE
define unit_rule
build/$(1)/$(notdir $(2:.c=)): $(patsubst %.c,build/$(1)/%.o,$(2) $($(notdir $(2:.c=))_WITH)) build/$(1)/libsources.a
	$$(CC) $$(UNIT_CFLAGS) $$($(1)_FLAGS) -o $$@ $$^ $$(UNIT_LIBS)
-include $(patsubst %.c,build/$(1)/%.d,$(2) $($(notdir $(2:.c=))_WITH))
endef
$(foreach t,$(UNIT_TESTS),$(eval $(call unit_rule,unit,$(t))))
$(foreach t,$(PLAIN_PROGRAMS),$(eval $(call unit_rule,plain,$(t))))

-include $(UNIT_SOURCES:%.c=build/unit/%.d) $(UNIT_SOURCES:%.c=build/plain/%.d)
