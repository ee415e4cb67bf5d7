/*-------------------------------------------------------------------------
 *
 * relfile.h
 *	  The name of a relation's segment file, and policies for relations'
 *	  files.  No postgres.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_RELFILE_H
#define RBP_RELFILE_H

#include <stdbool.h>
#include <stdint.h>

/* A segment file of a relation fork. */
typedef struct RbpRelFile
{
	uint32_t	spc;			/* tablespace */
	uint32_t	db;				/* 0 in the global tablespace */
	uint32_t	rel;			/* relfilenumber */
	uint32_t	segment;
	uint8_t		fork;
} RbpRelFile;

typedef enum RbpPolicy
{
	RBP_POLICY_DEFAULT,
	RBP_POLICY_KEEP,
	RBP_POLICY_NONE				/* neither captured nor published */
} RbpPolicy;

/* The policy of a file, and its pages; zero if none was set */
typedef struct RbpFilePolicy
{
	RbpPolicy	policy;
	uint32_t	kept;			/* pages that are kept */
	uint32_t	new_pages;		/* pages of zeros, which cannot be kept (rule
								 * 9 of coherence), found by a walk through
								 * the file */
	bool		fits;			/* it has a place for a policy, or may get one */
} RbpFilePolicy;

#endif							/* RBP_RELFILE_H */
