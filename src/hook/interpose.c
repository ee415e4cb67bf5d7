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
#elif defined(__aarch64__)
#define IS_SLOT_TYPE(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#else
#error "remote_bp does not know this machine's relocations"
#endif

typedef enum Need
{
	REQUIRED,					/* every server calls it */
	OPTIONAL					/* only some servers call it */
} Need;

/* A libc call, and the names under which it can be imported. */
typedef struct Call
{
	const char *names[3];
	Need		need;
	size_t		member;			/* offset in RbpLibc */
	bool		imported;		/* it has a slot */
} Call;

#define CALL(fn, need, ...) \
	{ {#fn, __VA_ARGS__}, need, offsetof(RbpLibc, fn), false }

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
	CALL(lstat, REQUIRED, "lstat64"),
	CALL(fstat, REQUIRED, "fstat64"),
	CALL(ftruncate, REQUIRED, "ftruncate64"),
	CALL(posix_fallocate, OPTIONAL, "posix_fallocate64"),
	CALL(truncate, REQUIRED, "truncate64"),
	CALL(unlink, REQUIRED, NULL),
	CALL(rename, REQUIRED, NULL),
	CALL(posix_fadvise, REQUIRED, "posix_fadvise64"),
	CALL(copy_file_range, OPTIONAL, NULL),
	CALL(fsync, REQUIRED, NULL),
	CALL(fdatasync, OPTIONAL, NULL),
	CALL(sync_file_range, OPTIONAL, NULL),
	CALL(syncfs, OPTIONAL, NULL),
	CALL(waitpid, REQUIRED, NULL),
	CALL(epoll_wait, OPTIONAL, NULL),
};

/*
 * Calls that could change or read a relation file without our notice.  No
 * known server imports them; a server that does must not run with us.  The last ones
 * are what stat(), lstat() and fstat() are to a server built with a glibc before 2.33.
 */
static const char *const forbidden_calls[] = {
	"openat", "openat64", "__open_2", "__open64_2", "creat", "creat64",
	"__pread_chk", "__pread64_chk", "preadv2", "pwritev2", "preadv64v2",
	"pwritev64v2", "writev", "fallocate", "fallocate64", "sendfile",
	"sendfile64", "splice", "unlinkat", "renameat", "renameat2",
	"aio_write", "aio_write64", "aio_read", "aio_read64", "statx",
	"__xstat", "__xstat64", "__lxstat", "__lxstat64", "__fxstat", "__fxstat64",
};

/* The executable */
typedef struct Image
{
	uintptr_t	base;
	const		ElfSym *symtab;
	const char *strtab;
	const		ElfRela *tables[2];
	size_t		sizes[2];
	uintptr_t	relro_start;
	uintptr_t	relro_end;
} Image;

static void
refuse(const char *why)
{
	ereport(FATAL,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("remote_bp cannot hook this server: %s", why),
			 errhint("Remove remote_bp from shared_preload_libraries, or use a server build that remote_bp supports.")));
}

/* dl_iterate_phdr callback: copy the first object, the executable. */
static int
copy_first(struct dl_phdr_info *info, size_t size, void *arg)
{
	memcpy(arg, info, Min(size, sizeof(*info)));
	return 1;					/* look no further */
}

static void
find_image(Image *image)
{
	struct dl_phdr_info info = {0};
	const		ElfDyn *dyn = NULL;
	uintptr_t	values[DT_NUM] = {0};	/* of its tags */

	dl_iterate_phdr(copy_first, &info);
	image->base = info.dlpi_addr;
	for (int i = 0; i < info.dlpi_phnum; i++)
	{
		const		ElfPhdr *ph = &info.dlpi_phdr[i];

		if (ph->p_type == PT_DYNAMIC)
			dyn = (const ElfDyn *) (image->base + ph->p_vaddr);
		else if (ph->p_type == PT_GNU_RELRO)
		{
			image->relro_start = image->base + ph->p_vaddr;
			image->relro_end = image->relro_start + ph->p_memsz;
			/* the linker protects whole pages only */
			image->relro_end &= ~((uintptr_t) sysconf(_SC_PAGESIZE) - 1);
		}
	}

	/* glibc has already added the load address to the pointers. */
	for (; dyn != NULL && dyn->d_tag != DT_NULL; dyn++)
		if (dyn->d_tag > 0 && dyn->d_tag < DT_NUM)
			values[dyn->d_tag] = dyn->d_un.d_ptr;
	image->symtab = (const void *) values[DT_SYMTAB];
	image->strtab = (const void *) values[DT_STRTAB];
	image->tables[0] = (const void *) values[DT_RELA];
	image->sizes[0] = values[DT_RELASZ];
	image->tables[1] = (const void *) values[DT_JMPREL];
	image->sizes[1] = values[DT_PLTRELSZ];
	if (image->symtab == NULL || image->strtab == NULL)
		refuse("its executable is not dynamically linked");
}

/*
 * Store value in a slot.  Returns false, with errno set, if the protection of
 * its page cannot be changed.
 */
static bool
set_slot(const Image *image, void **slot, void *value)
{
	uintptr_t	addr = (uintptr_t) slot;
	uintptr_t	pagesize = (uintptr_t) sysconf(_SC_PAGESIZE);
	void	   *page = (void *) (addr & ~(pagesize - 1));
	bool		relro = addr >= image->relro_start && addr < image->relro_end;

	if (relro && mprotect(page, pagesize, PROT_READ | PROT_WRITE) != 0)
		return false;
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (relro && mprotect(page, pagesize, PROT_READ) != 0)
		return false;
	return true;
}

static Call *
find_call(const char *name)
{
	for (size_t i = 0; i < lengthof(calls); i++)
		for (size_t k = 0; k < lengthof(calls[i].names) && calls[i].names[k]; k++)
			if (strcmp(name, calls[i].names[k]) == 0)
				return &calls[i];
	return NULL;
}

/* An imported function: note which call it is. */
static void
note_import(const char *name)
{
	Call	   *call = find_call(name);

	if (call != NULL)
		call->imported = true;
	for (size_t i = 0; i < lengthof(forbidden_calls); i++)
		if (strcmp(name, forbidden_calls[i]) == 0)
			refuse(psprintf("it calls \"%s\", which remote_bp does not follow", name));
}

/* Point the slot of an imported function at its wrapper, if it has one. */
static void
redirect(const Image *image, const char *name, void **slot, const RbpLibc *wrappers)
{
	const Call *call = find_call(name);
	void	   *wrapper = NULL;

	if (call != NULL)
		memcpy(&wrapper, (const char *) wrappers + call->member, sizeof(wrapper));
	if (wrapper != NULL && !set_slot(image, slot, wrapper))
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("remote_bp cannot hook this server: could not change the relocation slot of \"%s\": %m",
						name)));
}

/* Redirect all imported functions, or just note them if wrappers is NULL. */
static void
scan_slots(const Image *image, const RbpLibc *wrappers)
{
	for (int t = 0; t < lengthof(image->tables); t++)
		for (size_t i = 0; image->tables[t] != NULL && i < image->sizes[t] / sizeof(ElfRela); i++)
		{
			const		ElfRela *rela = &image->tables[t][i];
			const char *name = image->strtab + image->symtab[ELF64_R_SYM(rela->r_info)].st_name;

			if (!IS_SLOT_TYPE(ELF64_R_TYPE(rela->r_info)))
				continue;
			if (wrappers == NULL)
				note_import(name);
			else
				redirect(image, name, (void **) (image->base + rela->r_offset), wrappers);
		}
}

void
rbp_interpose_install(const RbpLibc *wrappers)
{
	Image		image = {0};

	find_image(&image);

	/*
	 * Look at all slots first, so that the server is never partially
	 * redirected.
	 */
	scan_slots(&image, NULL);
	for (size_t i = 0; i < lengthof(calls); i++)
	{
		void	   *original = dlsym(RTLD_DEFAULT, calls[i].names[0]);

		if (calls[i].need == REQUIRED && !calls[i].imported)
			refuse(psprintf("no relocation slot for \"%s\"", calls[i].names[0]));
		if (original == NULL && !calls[i].imported)
			continue;			/* we do not call it either */
		if (original == NULL)
			refuse(psprintf("libc has no \"%s\"", calls[i].names[0]));
		memcpy((char *) &rbp_libc + calls[i].member, &original,
			   sizeof(original));
	}
	scan_slots(&image, wrappers);
}
