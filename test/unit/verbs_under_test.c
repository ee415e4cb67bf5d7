/*-------------------------------------------------------------------------
 *
 * verbs_under_test.c
 *	  The verbs transport, with allocations that the tests can let fail.
 *
 *-------------------------------------------------------------------------
 */
#include "mock_verbs.h"

#include <stdlib.h>
#include <sys/mman.h>

#define malloc		mock_malloc
#define calloc		mock_calloc
#define realloc		mock_realloc
#define posix_memalign	mock_posix_memalign
#define aligned_alloc	mock_aligned_alloc
#define mmap		mock_mmap
#define munmap		mock_munmap
#define madvise		mock_madvise
#include "src/transport/verbs/device.c"
#include "src/transport/verbs/connect.c"
#include "src/transport/verbs/requests.c"
#include "src/transport/verbs/verbs.c"
