/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  The differences between server versions; nothing else tests
 *	  PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_COMPAT_H
#define RBP_COMPAT_H

#include "postgres.h"

#include "access/twophase.h"
#include "catalog/pg_class.h"
#include "common/relpath.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/buf_internals.h"
#include "storage/bufpage.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "utils/acl.h"
#include "utils/rel.h"
#include "utils/relfilenodemap.h"
#include "utils/relmapper.h"


#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 160000
#error "remote_bp is made for PostgreSQL 15"
#endif

/* Fill a buffer tag. */
static inline void
rbp_compat_tag(BufferTag *tag, Oid spc, Oid db, Oid rel, ForkNumber fork,
			   BlockNumber block)
{
	RelFileNode node = {.spcNode = spc,.dbNode = db,.relNode = rel};

	INIT_BUFFERTAG(*tag, node, fork, block);
}

/* Would the server accept the page as it is on disk?  Reports nothing. */
static inline bool
rbp_compat_page_verified(char *page, BlockNumber block)
{
	return PageIsVerifiedExtended((Page) page, block, 0);
}

/* This process's index in the array of PGPROCs. */
static inline int
rbp_compat_procno(void)
{
	return MyProc->pgprocno;
}

/*
 * If the process belongs to the server, make it end its transaction when it
 * can.  The server does the same to a process that lags behind in processing
 * invalidations.
 */
static inline void
rbp_compat_signal_catchup(pid_t pid)
{
	(void) SendProcSignal(pid, PROCSIG_CATCHUP_INTERRUPT, InvalidBackendId);
}

/*
 * Maximum number of PGPROCs, for arrays indexed by rbp_compat_procno().
 * Valid from shmem_request_hook on.
 */
static inline int
rbp_compat_max_procs(void)
{
	return MaxBackends + NUM_AUXILIARY_PROCS + max_prepared_xacts;
}

/* The three parts of the name of the relation's files. */
static inline Oid
rbp_compat_rel_number(Relation rel)
{
	return rel->rd_node.relNode;
}

static inline Oid
rbp_compat_rel_space(Relation rel)
{
	return rel->rd_node.spcNode;
}

static inline Oid
rbp_compat_rel_db(Relation rel)
{
	return rel->rd_node.dbNode;
}

/* The path of the fork's first segment, palloc'd. */
static inline char *
rbp_compat_rel_path(Relation rel, ForkNumber fork)
{
	return relpathbackend(rel->rd_node, rel->rd_backend, fork);
}

/*
 * The same for a relation that is not temporary, given the name of its files.
 */
static inline char *
rbp_compat_path(Oid spc, Oid db, Oid rel, ForkNumber fork)
{
	return GetRelationPath(db, spc, rel, InvalidBackendId, fork);
}

/* Relfilenumber of a relation that is not shared, from its row of pg_class. */
static inline Oid
rbp_compat_class_number(Form_pg_class class)
{
	return OidIsValid(class->relfilenode) ? class->relfilenode :
		RelationMapOidToFilenode(class->oid, false);
}

/* Does the role have the privileges of the relation's owner? */
static inline bool
rbp_compat_is_owner(Oid relation, Oid role)
{
	return pg_class_ownercheck(relation, role);
}

/* The relation of this database that has files of that name, or InvalidOid. */
static inline Oid
rbp_compat_relid(Oid spc, Oid rel)
{
	return RelidByRelfilenode(spc, rel);
}

/* Create a WaitEventSet for n events; free it with FreeWaitEventSet(). */
static inline WaitEventSet *
rbp_compat_wait_event_set(int n)
{
	return CreateWaitEventSet(CurrentMemoryContext, n);
}

#endif							/* RBP_COMPAT_H */
