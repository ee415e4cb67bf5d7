/*-------------------------------------------------------------------------
 *
 * directory_entry.h
 *	  An entry joins and leaves its chain and its list.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_DIRECTORY_ENTRY_H
#define RBP_DIRECTORY_ENTRY_H

#include "buffer/directory_internal.h"

/* Put the entry at the head of the list of the state; exclusive lock. */
static inline void
rbp_list_push(RbpDirectory *dir, RbpPartition *p, RbpSlotState state,
			  uint8_t freq, uint32_t index)
{
	RbpList    *list = &p->lists[state];
	uint32_t   *prev = rbp_array(dir, dir->prev);
	RbpEntry   *e = rbp_entry(dir, index);

	rbp_entry_set(e, state, freq);
	prev[index] = RBP_NIL;
	e->next = list->head;
	if (list->head == RBP_NIL)
		list->tail = index;
	else
		prev[list->head] = index;
	list->head = index;
	list->count++;
	if (state == RBP_SLOT_KEPT)
		rbp_kept_add(dir, index, 1);
}

/* Take the entry off the list that its state names; exclusive lock. */
static inline void
rbp_list_remove(RbpDirectory *dir, RbpPartition *p, uint32_t index)
{
	uint32_t   *prev = rbp_array(dir, dir->prev);
	RbpEntry   *e = rbp_entry(dir, index);
	RbpList    *list = &p->lists[rbp_entry_state(e)];

	if (prev[index] == RBP_NIL)
		list->head = e->next;
	else
		rbp_entry(dir, prev[index])->next = e->next;
	if (e->next == RBP_NIL)
		list->tail = prev[index];
	else
		prev[e->next] = prev[index];
	list->count--;
	if (rbp_entry_state(e) == RBP_SLOT_KEPT)
		rbp_kept_add(dir, index, -1);
}

/* Link the entry into its page's chain; exclusive lock. */
extern void rbp_chain_link(RbpDirectory *dir, uint64_t hash, uint32_t index);

/* Unlink it; exclusive lock. */
extern void rbp_chain_unlink(RbpDirectory *dir, uint64_t hash, uint32_t index);

/* Remove an entry that has a page from its chain and queue; exclusive lock. */
extern void rbp_entry_drop(RbpDirectory *dir, uint32_t part, uint32_t index,
						   uint64_t hash);

/* Give back a slot that counts as taken and is on no list; exclusive lock. */
extern void rbp_slot_release(RbpDirectory *dir, RbpPartition *p, uint32_t part,
							 uint32_t index);

#endif							/* RBP_DIRECTORY_ENTRY_H */
