/*-------------------------------------------------------------------------
 *
 * kernel.c
 *	  Numbers that the kernel tells in files.
 *
 *-------------------------------------------------------------------------
 */
#include "common/kernel.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool
rbp_kernel_number(const char *dir, const char *file, const char *name, uint64_t *value)
{
	size_t		len = name != NULL ? strlen(name) : 0;
	char		path[4096 + 64];
	char		line[256];
	FILE	   *f;
	bool		found = false;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	f = fopen(path, "re");
	if (f == NULL)
		return false;
	while (!found && fgets(line, sizeof(line), f) != NULL)
	{
		char	   *text = line;
		char	   *end;

		if (name != NULL)
		{
			if (strncmp(line, name, len) != 0 || (line[len] != ':' && line[len] != ' '))
				continue;
			text += len + 1;
			text += strspn(text, " \t");
		}
		if (!isdigit((unsigned char) *text))
			break;
		*value = strtoull(text, &end, 10);
		if (strncmp(end, " kB", 3) == 0)
			*value *= 1024;
		found = true;
	}
	fclose(f);
	return found;
}

bool
rbp_kernel_cgroup(char *dir, size_t len, bool *v2)
{
	FILE	   *f = fopen("/proc/self/cgroup", "re");
	char		line[4096];
	bool		found = false;

	if (f == NULL)
		return false;
	while (!found && fgets(line, sizeof(line), f) != NULL)
	{
		/* "0::PATH", or "NUMBER:CONTROLLERS:PATH" */
		char	   *controllers = strchr(line, ':');
		char	   *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

		if (path == NULL)
			continue;
		*path++ = '\0';
		controllers++;
		path[strcspn(path, "\n")] = '\0';
		*v2 = controllers[0] == '\0';
		found = *v2 || strcmp(controllers, "memory") == 0;
		snprintf(dir, len, RBP_CGROUP_ROOT "%s%s", *v2 ? "" : "/memory", path);
	}
	fclose(f);
	return found;
}
