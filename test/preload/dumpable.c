/*
 * dumpable.c
 *	  Preloaded into a donor by a test that looks at its memory: other processes of its
 *	  user may.
 */
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int
prctl(int option,...)
{
	unsigned long arg[4];
	va_list		list;

	va_start(list, option);
	for (int i = 0; i < 4; i++)
		arg[i] = va_arg(list, unsigned long);
	va_end(list);
	if (option == PR_SET_DUMPABLE)
		return 0;
	return (int) syscall(SYS_prctl, option, arg[0], arg[1], arg[2], arg[3]);
}
