/*-------------------------------------------------------------------------
 *
 * json.c
 *	  What JSON from others may cost, before it is decoded.
 *
 *-------------------------------------------------------------------------
 */
#include "common/json.h"

#include <stdbool.h>
#include <stdint.h>

size_t
rbp_json_values(const char *text, size_t len)
{
	bool		quoted = false;
	int			levels = 0;
	size_t		n = 1;

	for (size_t i = 0; i < len; i++)
	{
		char		c = text[i];

		if (c == '"')
			quoted = !quoted;
		else if (quoted && c == '\\')
			i++;
		else if (quoted)
			continue;
		else if (c == ',')
			n++;
		else if (c == ']' || c == '}')
			levels--;
		else if (c == '[' || c == '{')
		{
			n++;
			if (++levels > RBP_JSON_LEVELS)
				return SIZE_MAX;
		}
	}
	return n;
}
