# remote_bp: the extension (PGXS) and its three programs.
#
#   make, make install, make installcheck    as with any PGXS extension
#   make programs, make install-programs     the programs alone, which need no server; PREFIX is /usr/local
#   make deb         build packages for this release of Debian in build/deb, as any user, without network
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
.PHONY: setup setup-demo setup-soak $(MAKECMDGOALS)

setup:
	@test/setup

# fewer packages, which other releases of Debian have, too
setup-demo:
	@test/setup demo

# for images, too
setup-soak:
	@test/setup soak

check: setup
	@PG='$(PG)' test/check

soak: setup-soak
	@PG='$(PG)' test/check --soak

demo: setup-demo
	@KEEP='$(KEEP)' test/demo/run

bench: setup
	@test/bench/run

$(filter-out setup setup-demo setup-soak $(SCRIPT_GOALS),$(MAKECMDGOALS)): setup
	@$(MAKE) $@

else

.DEFAULT_GOAL := all

RBP_VERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" remote_bp.control)
RBP_DEFINES := -DRBP_VERSION='"$(RBP_VERSION)"'
RBP_WARNINGS := -Wall -Wextra -Wno-unused-parameter $(if $(WERROR),-Werror)
SHARED_SOURCES := $(wildcard $(foreach d,common wire transport transport/*,src/$(d)/*.c))

include broker/programs.mk

# Of what debian/control asks for, the headers of the server are enough: no bitcode
# is built, and its compiler need not be there (-d).
DEB_SOURCE := build/deb/remote-bp-$(RBP_VERSION)
.PHONY: deb
deb:
	rm -rf build/deb
	mkdir -p $(DEB_SOURCE)
	tar -cf - --exclude=./.git --exclude=./build --exclude=./test/out --exclude='./*.so' . | tar -xf - --no-same-owner -C $(DEB_SOURCE)
	cd $(DEB_SOURCE) && debian/rules gencontrol && dpkg-buildpackage -d -b -us -uc

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)

ifeq ($(wildcard $(PGXS)),)

.PHONY: all
all $(filter-out deb $(PROGRAM_GOALS),$(MAKECMDGOALS)):
	@echo 'No PostgreSQL server headers: "$(PG_CONFIG) --pgxs" names no file.' >&2
	@echo 'Set PG_CONFIG, or run test/setup, which installs what is missing on Debian.' >&2
	@exit 1

else

EXTENSION = remote_bp
MODULE_big = remote_bp
MODULES = remote_bp_lease remote_bp_follow remote_bp_verbs
DATA = $(wildcard sql/remote_bp--*.sql)
REGRESS = $(sort $(patsubst sql/%.sql,%,$(filter-out $(DATA),$(wildcard sql/*.sql))))

# What each of the libraries is made of.  The fault transport is for tests.
FAULT_SOURCES := $(wildcard test/fault/*.c)
MODULE_SOURCES := $(sort $(wildcard src/*.c src/*/*.c) $(SHARED_SOURCES))

# Each process of a server has what remote_bp.so needs, so this is little.  The
# lease worker loads remote_bp_lease.so, the follower remote_bp_follow.so, and who
# connects over verbs remote_bp_verbs.so; all use functions of remote_bp.so.
LEASE_SOURCES := $(filter src/lease/%,$(MODULE_SOURCES))
FOLLOW_SOURCES := $(filter src/follow/%,$(MODULE_SOURCES))
VERBS_SOURCES := $(filter src/transport/verbs/%,$(MODULE_SOURCES))
OWN_SOURCES := $(filter-out $(LEASE_SOURCES) $(FOLLOW_SOURCES) $(VERBS_SOURCES),$(MODULE_SOURCES))

OBJS = $(OWN_SOURCES:%.c=build/module/%.o)
TEST_OBJS := $(patsubst %.c,build/test/%.o,$(sort $(MODULE_SOURCES) $(FAULT_SOURCES)))

# Programs are executables; to PGXS, they are scripts that are built first.
SCRIPTS_built = $(PROGRAMS)
EXTRA_CLEAN = build

# The server's macros do not all bear -Wextra, and its style is C90.
PG_CFLAGS = -std=gnu11 $(RBP_WARNINGS) -Wno-declaration-after-statement \
	-Wno-sign-compare -Wno-missing-field-initializers
# last, the headers of libpq: those of the server with the same names come before
PG_CPPFLAGS = $(RBP_DEFINES) -Isrc $(shell pkg-config --cflags $(MODULE_PACKAGES)) \
	-idirafter $(shell pkg-config --variable=includedir $(FOLLOW_PACKAGES))
SHLIB_LINK = $(MODULE_LDFLAGS) $(shell pkg-config --libs $(OWN_PACKAGES)) -lpthread

OWN_PACKAGES := libcrypto libxxhash
LEASE_PACKAGES := libcurl jansson libcrypto
FOLLOW_PACKAGES := libpq
VERBS_PACKAGES := libcrypto librdmacm libibverbs
MODULE_PACKAGES := $(sort $(OWN_PACKAGES) $(LEASE_PACKAGES) $(VERBS_PACKAGES))

# For each page that a process is the first to use of this, or to write to, it takes a
# page fault: see "What a connection costs" in src/README.md.  Calls within a library
# are direct, and variables are in the order of their alignment, so that the small
# ones are next to each other.
MODULE_LDFLAGS = -Wl,-Bsymbolic -Wl,--as-needed -Wl,--sort-section=alignment

# No bitcode: nothing here is worth inlining into compiled queries.
override with_llvm = no
include $(PGXS)

# The libraries see each other's functions; PGXS hides them since version 16.
MODULE_COMPILE = $(CC) $(CFLAGS) $(CFLAGS_SL) -fvisibility=default -fdata-sections $(CPPFLAGS) \
	-DRBP_VERBS_LIBRARY='"remote_bp_verbs$(DLSUFFIX)"' -MMD -MP
MODULE_LINK = $(CC) $(CFLAGS) $(CFLAGS_SL) $(LDFLAGS) -shared -o $@

build/flags: FLAGS = $(CC) $(CFLAGS) $(CPPFLAGS) $(VERSION)

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

$(1)remote_bp_follow$(DLSUFFIX): $(FOLLOW_SOURCES:%.c=$(2)/%.o)
	$$(MODULE_LINK) $$^ $$(MODULE_LDFLAGS) $$(shell pkg-config --libs $(FOLLOW_PACKAGES))

$(1)remote_bp_verbs$(DLSUFFIX): $(VERBS_SOURCES:%.c=$(2)/%.o)
	$$(MODULE_LINK) $$^ $$(MODULE_LDFLAGS) $$(shell pkg-config --libs $(VERBS_PACKAGES)) -lpthread
endef
$(eval $(call parts_rules,,build/module))
$(eval $(call parts_rules,build/test/,build/test))

.PHONY: test-build
test-build: $(patsubst %,build/test/%$(DLSUFFIX),$(MODULE_big) $(MODULES))

# PGXS would look for build/ in bindir.
uninstall: uninstall-programs
.PHONY: uninstall-programs
uninstall-programs:
	rm -f $(addprefix '$(DESTDIR)$(bindir)'/,$(notdir $(PROGRAMS)))

include test/unit.mk

-include $(MODULE_SOURCES:%.c=build/module/%.d) $(TEST_OBJS:.o=.d)

endif
endif
