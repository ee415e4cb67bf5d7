/*-------------------------------------------------------------------------
 *
 * rbp_relfile.h
 *	  The name of a relation's segment file.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_RELFILE_H
#define RBP_RELFILE_H

#include "postgres.h"

/* A segment file of a relation fork. */
typedef struct RbpRelFile
{
	Oid			spc;
	Oid			db;				/* 0 in the global tablespace */
	Oid			rel;			/* relfilenumber */
	uint32		segment;
	uint8		fork;
} RbpRelFile;

#endif							/* RBP_RELFILE_H */
