/*-------------------------------------------------------------------------
 *
 * interpose.c
 *	  Redirect the libc calls of the server's executable to wrappers.
 *
 * A dynamically linked executable calls libc through slots that the dynamic
 * linker fills in: one for each imported function, listed with its symbol in
 * the relocations DT_JMPREL (R_*_JUMP_SLOT) and DT_RELA (R_*_GLOB_DAT, used
 * by code compiled without a PLT and for taken addresses).  We look for the
 * executable (the first object that dl_iterate_phdr reports), find the slots
 * by name, and store the addresses of our wrappers in them.  Children inherit
 * the changed slots with the address space.  Only calls by the executable
 * itself are redirected; calls by libc, by libraries and by our own library
 * are not.
 *
 * Debian's servers are linked with full RELRO: the linker makes the slots
 * read-only after relocation.  So we make the page of a slot writable, and
 * protect it again afterwards.
 *
 * The address of the original function comes from dlsym(), which searches the
 * global scope.  This is what the linker has put, or would put, into the
 * slot, and takes LD_PRELOAD into account.  The content of the slot cannot be
 * used: with lazy binding it is the address of a stub that would resolve the
 * symbol and overwrite our wrapper.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/libc.h"
#include "hook/interpose.h"

typedef ElfW(Dyn) ElfDyn;
typedef ElfW(Phdr) ElfPhdr;
typedef ElfW(Rela) ElfRela;
typedef ElfW(Sym) ElfSym;

#if defined(__x86_64__)
#define IS_SLOT_TYPE(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#define FIRST_GLIBC		"GLIBC_2.2.5"
#elif defined(__aarch64__)
#define IS_SLOT_TYPE(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#define FIRST_GLIBC		"GLIBC_2.17"
#else
#error "remote_bp does not know this machine's relocations"
#endif

#define MAX_SLOTS_PER_CALL	4

typedef enum Need
{
	REQUIRED,					/* every server version calls it */
	OPTIONAL,					/* only some server versions call it */
	OLD_NAME					/* what a server that was built with a glibc
								 * before 2.33 calls instead of the one above */
} Need;

/* A libc call, the names under which it can be imported, and its slots. */
typedef struct Call
{
	const char *names[3];
	Need		need;
	size_t		member;			/* offset in RbpLibc */
	void	  **slots[MAX_SLOTS_PER_CALL];
	int			nslots;
} Call;

#define CALL(fn, need, ...) \
	{ {#fn, __VA_ARGS__}, need, offsetof(RbpLibc, fn), {NULL}, 0 }

/* The 64-bit names are the same functions on the machines above. */
static Call calls[] = {
	CALL(open, REQUIRED, "open64"),
	CALL(close, REQUIRED, NULL),
	CALL(write, REQUIRED, NULL),
	CALL(pread, REQUIRED, "pread64"),
	CALL(preadv, OPTIONAL, "preadv64"),
	CALL(pwrite, REQUIRED, "pwrite64"),
	CALL(pwritev, REQUIRED, "pwritev64"),
	CALL(lseek, REQUIRED, "lseek64"),
	CALL(stat, REQUIRED, "stat64"),
	CALL(__xstat, OLD_NAME, "__xstat64"),
	CALL(lstat, REQUIRED, "lstat64"),
	CALL(__lxstat, OLD_NAME, "__lxstat64"),
	CALL(fstat, REQUIRED, "fstat64"),
	CALL(__fxstat, OLD_NAME, "__fxstat64"),
	CALL(ftruncate, REQUIRED, "ftruncate64"),
	CALL(posix_fallocate, OPTIONAL, "posix_fallocate64"),
	CALL(truncate, REQUIRED, "truncate64"),
	CALL(unlink, REQUIRED, NULL),
	CALL(rename, REQUIRED, NULL),
	CALL(posix_fadvise, REQUIRED, "posix_fadvise64"),
	CALL(copy_file_range, OPTIONAL, NULL),
	CALL(epoll_wait, OPTIONAL, NULL),
};

/*
 * Calls that could change or read a relation file without our notice.  No
 * known server imports them; a server that does must not run with us.
 */
static const char *const forbidden_calls[] = {
	"openat", "openat64", "__open_2", "__open64_2", "creat", "creat64",
	"__pread_chk", "__pread64_chk", "preadv2", "pwritev2", "preadv64v2",
	"pwritev64v2", "writev", "fallocate", "fallocate64", "sendfile",
	"sendfile64", "splice", "unlinkat", "renameat", "renameat2",
	"aio_write", "aio_write64", "aio_read", "aio_read64", "statx",
};

typedef struct Scan
{
	const char *forbidden;		/* a forbidden import that was found */
	bool		not_dynamic;	/* statically linked? */
	bool		too_many;
	uintptr_t	relro_start;
	uintptr_t	relro_end;
} Scan;

static void
add_slot(Scan *scan, const char *name, void **slot)
{
	for (size_t i = 0; i < lengthof(calls); i++)
	{
		Call	   *call = &calls[i];

		for (size_t k = 0; k < lengthof(call->names) && call->names[k]; k++)
		{
			if (strcmp(name, call->names[k]) != 0)
				continue;
			if (call->nslots == MAX_SLOTS_PER_CALL)
				scan->too_many = true;
			else
				call->slots[call->nslots++] = slot;
			return;
		}
	}
	for (size_t i = 0; i < lengthof(forbidden_calls); i++)
		if (strcmp(name, forbidden_calls[i]) == 0)
			scan->forbidden = forbidden_calls[i];
}

static void
scan_relocations(Scan *scan, uintptr_t base, const ElfRela * rela,
				 size_t size, const ElfSym * symtab, const char *strtab)
{
	for (size_t i = 0; i < size / sizeof(*rela); i++)
	{
		const		ElfSym *sym;

		if (!IS_SLOT_TYPE(ELF64_R_TYPE(rela[i].r_info)))
			continue;
		sym = &symtab[ELF64_R_SYM(rela[i].r_info)];
		add_slot(scan, strtab + sym->st_name,
				 (void **) (base + rela[i].r_offset));
	}
}

/* dl_iterate_phdr callback; looks at the first object, the executable. */
static int
scan_executable(struct dl_phdr_info *info, size_t size, void *arg)
{
	Scan	   *scan = arg;
	const		ElfDyn *dyn = NULL;
	const		ElfSym *symtab = NULL;
	const char *strtab = NULL;
	const		ElfRela *jmprel = NULL;
	const		ElfRela *rela = NULL;
	size_t		jmprel_size = 0;
	size_t		rela_size = 0;

	(void) size;
	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const		ElfPhdr *ph = &info->dlpi_phdr[i];

		if (ph->p_type == PT_DYNAMIC)
			dyn = (const ElfDyn *) (info->dlpi_addr + ph->p_vaddr);
		else if (ph->p_type == PT_GNU_RELRO)
		{
			scan->relro_start = info->dlpi_addr + ph->p_vaddr;
			scan->relro_end = scan->relro_start + ph->p_memsz;
			/* the linker protects whole pages only */
			scan->relro_end &= ~((uintptr_t) sysconf(_SC_PAGESIZE) - 1);
		}
	}
	if (dyn == NULL)
	{
		scan->not_dynamic = true;
		return 1;
	}

	/* glibc has already added the load address to the pointers. */
	for (; dyn->d_tag != DT_NULL; dyn++)
	{
		switch (dyn->d_tag)
		{
			case DT_SYMTAB:
				symtab = (const void *) dyn->d_un.d_ptr;
				break;
			case DT_STRTAB:
				strtab = (const void *) dyn->d_un.d_ptr;
				break;
			case DT_JMPREL:
				jmprel = (const void *) dyn->d_un.d_ptr;
				break;
			case DT_PLTRELSZ:
				jmprel_size = dyn->d_un.d_val;
				break;
			case DT_RELA:
				rela = (const void *) dyn->d_un.d_ptr;
				break;
			case DT_RELASZ:
				rela_size = dyn->d_un.d_val;
				break;
		}
	}
	if (symtab == NULL || strtab == NULL)
		scan->not_dynamic = true;
	else
	{
		if (rela)
			scan_relocations(scan, info->dlpi_addr, rela, rela_size,
							 symtab, strtab);
		if (jmprel)
			scan_relocations(scan, info->dlpi_addr, jmprel, jmprel_size,
							 symtab, strtab);
	}
	return 1;					/* the executable is first; look no further */
}

/*
 * Store value in a slot.  Returns false, with errno set, if the protection of
 * its page cannot be changed.
 */
static bool
set_slot(const Scan *scan, void **slot, void *value)
{
	uintptr_t	addr = (uintptr_t) slot;
	uintptr_t	pagesize = (uintptr_t) sysconf(_SC_PAGESIZE);
	void	   *page = (void *) (addr & ~(pagesize - 1));
	bool		relro = addr >= scan->relro_start && addr < scan->relro_end;

	if (relro && mprotect(page, pagesize, PROT_READ | PROT_WRITE) != 0)
		return false;
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (relro && mprotect(page, pagesize, PROT_READ) != 0)
		return false;
	return true;
}

/* Is there no slot for a call that the server must make? */
static bool
is_missing(size_t i)
{
	bool		has_old_name = i + 1 < lengthof(calls) && calls[i + 1].need == OLD_NAME;

	return calls[i].need == REQUIRED && calls[i].nslots == 0 &&
		!(has_old_name && calls[i + 1].nslots > 0);
}

/*
 * The address of the original function.  Names that new programs cannot be
 * linked with are found only with their version.
 */
static void *
original_of(const Call *call)
{
	void	   *original = dlsym(RTLD_DEFAULT, call->names[0]);

	if (original == NULL && call->need == OLD_NAME)
		original = dlvsym(RTLD_DEFAULT, call->names[0], FIRST_GLIBC);
	return original;
}

void
rbp_interpose_install(const RbpLibc *wrappers)
{
	Scan		scan = {0};

	dl_iterate_phdr(scan_executable, &scan);

	if (scan.not_dynamic)
		ereport(FATAL,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("remote_bp cannot hook this server: its executable is not dynamically linked")));
	if (scan.too_many)
		ereport(FATAL,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("remote_bp cannot hook this server: too many relocations of one file call")));
	if (scan.forbidden)
		ereport(FATAL,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("remote_bp cannot hook this server: it calls \"%s\", which remote_bp does not follow",
						scan.forbidden),
				 errhint("Remove remote_bp from shared_preload_libraries, or use a server build that remote_bp supports.")));

	/*
	 * Find all slots first, so that the server is never partially redirected.
	 */
	for (size_t i = 0; i < lengthof(calls); i++)
	{
		void	   *original;

		if (is_missing(i))
			ereport(FATAL,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("remote_bp cannot hook this server: no relocation slot for \"%s\"",
							calls[i].names[0]),
					 errhint("Remove remote_bp from shared_preload_libraries, or use a server build that remote_bp supports.")));
		original = original_of(&calls[i]);
		if (original == NULL && calls[i].nslots == 0 && calls[i].need != REQUIRED)
			continue;			/* we do not call it either */
		if (original == NULL)
			ereport(FATAL,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("remote_bp cannot hook this server: libc has no \"%s\"",
							calls[i].names[0])));
		memcpy((char *) &rbp_libc + calls[i].member, &original,
			   sizeof(original));
	}

	for (size_t i = 0; i < lengthof(calls); i++)
	{
		void	   *wrapper;

		memcpy(&wrapper, (const char *) wrappers + calls[i].member,
			   sizeof(wrapper));
		if (wrapper == NULL)
			continue;
		for (int k = 0; k < calls[i].nslots; k++)
			if (!set_slot(&scan, calls[i].slots[k], wrapper))
				ereport(FATAL,
						(errcode_for_file_access(),
						 errmsg("remote_bp cannot hook this server: could not change the relocation slot of \"%s\": %m",
								calls[i].names[0])));
	}
}
