/*-------------------------------------------------------------------------
 *
 * mock_assert.c
 *	  A failed assertion of the server's, in a test that has no server.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "tap.h"

void
#if PG_VERSION_NUM >= 160000
			ExceptionalCondition(const char *conditionName,
#else
ExceptionalCondition(const char *conditionName, const char *errorType,
#endif
					 const char *fileName, int lineNumber)
{
	diag("%s, %s:%d", conditionName, fileName, lineNumber);
	abort();
}
