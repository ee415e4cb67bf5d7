/*-------------------------------------------------------------------------
 *
 * directory_entry.c
 *	  An entry joins and leaves its chain; what is left of it when it is dropped.
 *
 * directory_pages.c explains how this fits together with the other files.
 *
 *-------------------------------------------------------------------------
 */
#include "buffer/directory_internal.h"

void
rbp_chain_link(RbpDirectory *dir, uint64_t hash, uint32_t index)
{
	uint32_t   *head = rbp_bucket_head(dir, hash);

	rbp_entry(dir, index)->chain = ~*head;
	*head = ~index;
}

void
rbp_chain_unlink(RbpDirectory *dir, uint64_t hash, uint32_t index)
{
	uint32_t   *head = rbp_bucket_head(dir, hash);
	uint32_t   *link;

	if (~*head == index)
	{
		*head = ~rbp_entry(dir, index)->chain;
		return;
	}
	link = &rbp_entry(dir, ~*head)->chain;
	while (*link != index)
	{
		Assert(*link != RBP_NIL);
		link = &rbp_entry(dir, *link)->chain;
	}
	*link = rbp_entry(dir, index)->chain;
}

/*
 * A slot that counts as taken and is on no list is not needed any more: free
 * it, or leave it out of use if nothing is to be put into its extent.
 */
void
rbp_slot_release(RbpDirectory *dir, RbpPartition *p, uint32_t part, uint32_t index)
{
	if (rbp_extent_open(dir->extents, index - part * dir->nlocal))
		rbp_list_push(dir, p, RBP_SLOT_FREE, 0, index);
	else
	{
		rbp_entry_set(rbp_entry(dir, index), RBP_SLOT_UNUSED, 0);
		p->taken--;
	}
}

/* Take the entry, that has a page, out of chain and queue. */
void
rbp_entry_drop(RbpDirectory *dir, uint32_t part, uint32_t index, uint64_t hash)
{
	RbpPartition *p = &dir->partitions[part];
	RbpEntry   *e = rbp_entry(dir, index);

	rbp_chain_unlink(dir, hash, index);
	rbp_list_remove(dir, p, index);
	if (index >= dir->max_slots)
		rbp_entry_set(e, RBP_SLOT_UNUSED, 0);
	else
	{
		rbp_account_add(dir, part, index, hash, -1, -rbp_entry_freq(e));
		rbp_slot_release(dir, p, part, index);
	}
}
