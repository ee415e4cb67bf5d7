# The three programs, their man pages and the completion of ctl.  Included by the
# Makefile, with PGXS or without: the programs, and what they share with the module, see
# no server header.

PROGRAM_GOALS := programs man install-programs
PROGRAM_NAMES := broker donor ctl
PROGRAMS := $(PROGRAM_NAMES:%=build/remote_bp_%)
PROGRAM_SOURCES := $(wildcard broker/*/*.c) $(SHARED_SOURCES)
PROGRAM_OBJS := $(PROGRAM_SOURCES:%.c=build/program/%.o)
PROGRAM_PACKAGES := libmicrohttpd gnutls jansson libcurl sqlite3 libcrypto libsystemd libxxhash librdmacm libibverbs
MAN_PAGES := $(patsubst docs/%,build/%,$(wildcard docs/man/*.[18]))

# remote_bp_ctl alone is linked with these, and made of one more room.
ctl_PACKAGES := libpq
ctl_ROOMS := server

# as in the server's own flags; others come by COPT, as with PGXS
ifeq ($(origin CC),default)
CC = gcc
endif
PROGRAM_CFLAGS = -std=gnu11 -O2 -g -fno-omit-frame-pointer -fstack-protector-strong \
	$(RBP_WARNINGS) -Wmissing-prototypes -pthread $(COPT)
PROGRAM_CPPFLAGS = -D_GNU_SOURCE -D_FORTIFY_SOURCE=2 $(RBP_DEFINES) -Isrc -I. \
	$(shell pkg-config --cflags $(PROGRAM_PACKAGES)) $(shell pkg-config --cflags-only-I $(ctl_PACKAGES))
PROGRAM_LDFLAGS = -Wl,-z,relro -Wl,-z,now -Wl,--as-needed -pthread
PROGRAM_LIBS = $(shell pkg-config --libs $(PROGRAM_PACKAGES))

# Changes when flags, compiler or version do, and everything is made again.
build/program.flags: FLAGS = $(CC) $(PROGRAM_CFLAGS) $(PROGRAM_CPPFLAGS)
build/flags build/program.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(subst ','\'',$(FLAGS))' >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
.PHONY: FORCE
FORCE:

build/program/%.o: %.c Makefile broker/programs.mk build/program.flags
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_CFLAGS) $(PROGRAM_CPPFLAGS) -MMD -MP -c -o $@ $<

build/libremote_bp.a: $(patsubst %.c,build/program/%.o,$(wildcard broker/common/*.c) $(SHARED_SOURCES))
	rm -f $@
	$(AR) qcs $@ $^

define program_rule
build/remote_bp_$(1): $(patsubst %.c,build/program/%.o,$(wildcard $(patsubst %,broker/%/*.c,$(1) $($(1)_ROOMS)))) build/libremote_bp.a
	$$(CC) $$(PROGRAM_CFLAGS) $$(PROGRAM_LDFLAGS) -o $$@ $$^ $$(PROGRAM_LIBS) $(if $($(1)_PACKAGES),$$(shell pkg-config --libs $($(1)_PACKAGES)))
endef
$(foreach p,$(PROGRAM_NAMES),$(eval $(call program_rule,$(p))))

# The options in a man page are those of the program's own --help.
build/man/%: docs/man/% docs/man/fill $(PROGRAMS)
	@mkdir -p $(@D)
	docs/man/fill $< build/$(basename $*) >$@.new
	mv $@.new $@

PREFIX ?= /usr/local

.PHONY: $(PROGRAM_GOALS)
programs: $(PROGRAMS)
man: $(MAN_PAGES)
install-programs: programs man
	install -d $(addprefix '$(DESTDIR)$(PREFIX)'/,bin share/man/man1 share/man/man8 share/bash-completion/completions)
	install -m 755 $(PROGRAMS) '$(DESTDIR)$(PREFIX)/bin'
	install -m 644 $(filter %.1,$(MAN_PAGES)) '$(DESTDIR)$(PREFIX)/share/man/man1'
	install -m 644 $(filter %.8,$(MAN_PAGES)) '$(DESTDIR)$(PREFIX)/share/man/man8'
	install -m 644 broker/ctl/completion.bash '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/remote_bp_ctl'

-include $(PROGRAM_OBJS:.o=.d)
