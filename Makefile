# remote_bp: the extension (PGXS) and its three programs.
#
#   make, make install, make installcheck    as with any PGXS extension
#   make check       install what is missing, build, run every test
#   make soak        the same with all server versions, which takes hours
#   make demo        install what is missing, build, show it (KEEP=1: keep it running)
#   make bench       install what is missing, build, measure
#   make card-check  check two hosts with RDMA cards: HOST, ADDRESS, DIR; see docs/operations.md
#   make test-build  the build that the failure tests use, under build/test
#   make unit-build  the tests in C, with sanitizers, under build/unit
#
# WERROR=1 makes warnings errors.

# These goals set the machine up themselves, so they cannot count on
# pg_config being there.  They run their scripts, which call make again for
# the rest.  PGXS, which has a "check" of its own, stays out of it.
SCRIPT_GOALS := check soak demo bench

ifneq ($(filter $(SCRIPT_GOALS),$(MAKECMDGOALS)),)

.NOTPARALLEL:
.PHONY: setup setup-demo $(MAKECMDGOALS)

setup:
	@test/setup

# fewer packages, which other releases of Debian have, too
setup-demo:
	@test/setup demo

check: setup
	@PG='$(PG)' test/check

soak: setup
	@PG='$(PG)' test/check --soak

demo: setup-demo
	@KEEP='$(KEEP)' test/demo/run

bench: setup
	@test/bench/run

$(filter-out setup setup-demo $(SCRIPT_GOALS),$(MAKECMDGOALS)): setup
	@$(MAKE) $@

else

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifeq ($(wildcard $(PGXS)),)

.DEFAULT_GOAL := all
.PHONY: all
all $(MAKECMDGOALS):
	@echo 'No PostgreSQL server headers: "$(PG_CONFIG) --pgxs" names no file.' >&2
	@echo 'Set PG_CONFIG, or run test/setup, which installs what is missing on Debian.' >&2
	@exit 1

else

EXTENSION = remote_bp
MODULE_big = remote_bp
MODULES = remote_bp_lease remote_bp_verbs
DATA = $(wildcard sql/remote_bp--*.sql)
REGRESS = $(sort $(patsubst sql/%.sql,%,$(filter-out $(DATA),$(wildcard sql/*.sql))))

RBP_VERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" remote_bp.control)

# What each of the products is made of.  The fault transport is for tests.
FAULT_SOURCES := $(wildcard test/fault/*.c)
SHARED_SOURCES := $(wildcard $(foreach d,common wire transport transport/*,src/$(d)/*.c))
MODULE_SOURCES := $(sort $(wildcard src/*.c src/*/*.c) $(SHARED_SOURCES))
PROGRAM_NAMES := broker donor ctl
PROGRAMS := $(PROGRAM_NAMES:%=build/remote_bp_%)
PROGRAM_SOURCES := $(wildcard broker/*/*.c) $(SHARED_SOURCES)

# Each process of a server has what remote_bp.so needs, so this is little.  The
# lease worker loads remote_bp_lease.so, and who connects over verbs
# remote_bp_verbs.so; both use functions of remote_bp.so.
LEASE_SOURCES := $(filter src/lease/%,$(MODULE_SOURCES))
VERBS_SOURCES := $(filter src/transport/verbs/%,$(MODULE_SOURCES))
OWN_SOURCES := $(filter-out $(LEASE_SOURCES) $(VERBS_SOURCES),$(MODULE_SOURCES))

OBJS = $(OWN_SOURCES:%.c=build/module/%.o)
TEST_OBJS := $(patsubst %.c,build/test/%.o,$(sort $(MODULE_SOURCES) $(FAULT_SOURCES)))
PROGRAM_OBJS := $(PROGRAM_SOURCES:%.c=build/program/%.o)

# Programs are executables; to PGXS, they are scripts that are built first.
SCRIPTS_built = $(PROGRAMS)
EXTRA_CLEAN = build

RBP_DEFINES := -DRBP_VERSION='"$(RBP_VERSION)"'
RBP_WARNINGS := -Wall -Wextra -Wno-unused-parameter $(if $(WERROR),-Werror)

# The server's macros do not all bear -Wextra, and its style is C90.
PG_CFLAGS = -std=gnu11 $(RBP_WARNINGS) -Wno-declaration-after-statement \
	-Wno-sign-compare -Wno-missing-field-initializers
PG_CPPFLAGS = $(RBP_DEFINES) -Isrc $(shell pkg-config --cflags $(MODULE_PACKAGES))
SHLIB_LINK = $(MODULE_LDFLAGS) $(shell pkg-config --libs $(OWN_PACKAGES)) -lpthread

OWN_PACKAGES := libcrypto libxxhash
LEASE_PACKAGES := libcurl jansson
VERBS_PACKAGES := libcrypto librdmacm libibverbs
MODULE_PACKAGES := $(sort $(OWN_PACKAGES) $(LEASE_PACKAGES) $(VERBS_PACKAGES))

# For each page that a process is the first to use of this, or to write to, it takes a
# page fault: see "What a connection costs" in src/README.md.  Calls within a library
# are direct, and variables are in the order of their alignment, so that the small
# ones are next to each other.
MODULE_LDFLAGS = -Wl,-Bsymbolic -Wl,--as-needed -Wl,--sort-section=alignment
PROGRAM_PACKAGES := libmicrohttpd jansson libcurl sqlite3 libcrypto libsystemd libxxhash librdmacm libibverbs

# remote_bp_ctl alone is linked with these, and made of one more room.
ctl_PACKAGES := libpq
ctl_ROOMS := server

# The programs, and what they share with the module, see no server header.
PROGRAM_CFLAGS = -std=gnu11 -O2 -g -fno-omit-frame-pointer -fstack-protector-strong \
	$(RBP_WARNINGS) -Wmissing-prototypes -pthread
PROGRAM_CPPFLAGS = -D_GNU_SOURCE -D_FORTIFY_SOURCE=2 $(RBP_DEFINES) -Isrc -I. \
	$(shell pkg-config --cflags $(PROGRAM_PACKAGES)) $(shell pkg-config --cflags-only-I $(ctl_PACKAGES))
PROGRAM_LDFLAGS = -Wl,-z,relro -Wl,-z,now -Wl,--as-needed -pthread
PROGRAM_LIBS = $(shell pkg-config --libs $(PROGRAM_PACKAGES))

# No bitcode: nothing here is worth inlining into compiled queries.
override with_llvm = no
include $(PGXS)

# The libraries see each other's functions; PGXS hides them since version 16.
MODULE_COMPILE = $(CC) $(CFLAGS) $(CFLAGS_SL) -fvisibility=default -fdata-sections $(CPPFLAGS) \
	-DRBP_VERBS_LIBRARY='"remote_bp_verbs$(DLSUFFIX)"' -MMD -MP
MODULE_LINK = $(CC) $(CFLAGS) $(CFLAGS_SL) $(LDFLAGS) -shared -o $@

# Changes when flags, compiler or version do, and everything is made again.
build/flags: FORCE
	@$(MKDIR_P) $(@D)
	@echo '$(subst ','\'',$(CC) $(CFLAGS) $(CPPFLAGS) $(PROGRAM_CFLAGS) $(PROGRAM_CPPFLAGS) $(VERSION))' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
.PHONY: FORCE
FORCE:

build/module/%.o: %.c Makefile build/flags
	@$(MKDIR_P) $(@D)
	$(MODULE_COMPILE) -c -o $@ $<

# The build for tests: each coherence rule can be switched off, and the
# fault transport is there.  Its name is the same, its directory is not; the
# tests point dynamic_library_path at it.
build/test/%.o: %.c Makefile build/flags
	@$(MKDIR_P) $(@D)
	$(MODULE_COMPILE) -DRBP_INJECTION_POINTS -c -o $@ $<

build/test/remote_bp$(DLSUFFIX): $(patsubst %.c,build/test/%.o,$(OWN_SOURCES) $(FAULT_SOURCES))
	$(MODULE_LINK) $^ $(SHLIB_LINK)

# parts_rules DIRECTORY OF THE LIBRARIES,DIRECTORY OF THE OBJECTS
define parts_rules
$(1)remote_bp_lease$(DLSUFFIX): $(LEASE_SOURCES:%.c=$(2)/%.o)
	$$(MODULE_LINK) $$^ $$(MODULE_LDFLAGS) $$(shell pkg-config --libs $(LEASE_PACKAGES)) -lpthread

$(1)remote_bp_verbs$(DLSUFFIX): $(VERBS_SOURCES:%.c=$(2)/%.o)
	$$(MODULE_LINK) $$^ $$(MODULE_LDFLAGS) $$(shell pkg-config --libs $(VERBS_PACKAGES)) -lpthread
endef
$(eval $(call parts_rules,,build/module))
$(eval $(call parts_rules,build/test/,build/test))

.PHONY: test-build programs
test-build: $(patsubst %,build/test/%$(DLSUFFIX),$(MODULE_big) $(MODULES))

build/program/%.o: %.c Makefile build/flags
	@$(MKDIR_P) $(@D)
	$(CC) $(PROGRAM_CFLAGS) $(PROGRAM_CPPFLAGS) -MMD -MP -c -o $@ $<

build/libremote_bp.a: $(patsubst %.c,build/program/%.o,$(wildcard broker/common/*.c) $(SHARED_SOURCES))
	rm -f $@
	$(AR) qcs $@ $^

define program_rule
build/remote_bp_$(1): $(patsubst %.c,build/program/%.o,$(wildcard $(patsubst %,broker/%/*.c,$(1) $($(1)_ROOMS)))) build/libremote_bp.a
	$$(CC) $$(PROGRAM_CFLAGS) $$(PROGRAM_LDFLAGS) -o $$@ $$^ $$(PROGRAM_LIBS) $(if $($(1)_PACKAGES),$$(shell pkg-config --libs $($(1)_PACKAGES)))
endef
$(foreach p,$(PROGRAM_NAMES),$(eval $(call program_rule,$(p))))

programs: $(PROGRAMS)

# PGXS would look for build/ in bindir.
uninstall: uninstall-programs
.PHONY: uninstall-programs
uninstall-programs:
	rm -f $(addprefix '$(DESTDIR)$(bindir)'/,$(notdir $(PROGRAMS)))

include test/unit.mk

-include $(MODULE_SOURCES:%.c=build/module/%.d) $(TEST_OBJS:.o=.d) $(PROGRAM_OBJS:.o=.d)

endif
endif
