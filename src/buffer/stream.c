/*-------------------------------------------------------------------------
 *
 * stream.c
 *	  Recognizes reads of consecutive blocks, and says what to read ahead.
 *
 * Blocks that are in shared buffers are not read, so a run may have gaps.  Each
 * gap halves the length that counts, so that reads of every second block are
 * no run.
 *
 *-------------------------------------------------------------------------
 */
#include "base/choice.h"
#include "buffer/stream.h"

#define RUN_MIN				4	/* blocks in a row that make a run */
#define GAP_MAX				8	/* blocks left out within a run */
#define FIRST_WINDOW		8

/* A run that goes on RBP_RUN_JUMP blocks further may be a chunk, after another one */
#define CHUNK_MIN			16

/* A stream with a run outlives so many reads more than one without */
#define RUN_BONUS			64

static bool
is_run(const RbpStream *s)
{
	return s->length >= RUN_MIN && s->reads > 1;
}

/* Begin a run of the fork at that block. */
static void
begin_run(RbpStream *s, const RbpPageId *fork, uint32_t block, uint32_t expected)
{
	s->fork = *fork;
	s->start = s->next = s->planned = block;
	s->length = s->reads = s->window = 0;
	s->expected = expected;
}

/* The stream whose run goes on at that block, maybe after a jump, or NULL */
static RbpStream *
find_stream(RbpStreams *streams, const RbpPageId *first)
{
	RbpStream  *found = 0;

	for (RbpStream *s = streams->streams; s < streams->streams + RBP_STREAMS; s++)
	{
		uint32_t	distance = first->block - s->next;

		if (s->last_use == 0 || first->block < s->next || !rbp_page_same_fork(&s->fork, first))
			continue;
		if (distance > GAP_MAX &&
			(distance > RBP_RUN_JUMP || s->length < CHUNK_MIN))
			continue;
		if (found == 0 || distance < first->block - found->next)
			found = s;
	}
	return found;
}

/* A stream to be used for another sequence of reads */
static RbpStream *
get_stream(RbpStreams *streams)
{
	RbpStream  *oldest = streams->streams;

	for (RbpStream *s = streams->streams; s < streams->streams + RBP_STREAMS; s++)
		if (s->last_use + (is_run(s) ? RUN_BONUS : 0) <
			oldest->last_use + (is_run(oldest) ? RUN_BONUS : 0))
			oldest = s;
	return oldest;
}

RbpStream *
rbp_stream_note(RbpStreams *streams, const RbpPageId *first, uint32_t n)
{
	RbpStream  *s = find_stream(streams, first);

	if (s == 0)
	{
		s = get_stream(streams);
		begin_run(s, first, first->block, 0);
	}
	else if (first->block - s->next > GAP_MAX)
	{
		/* the run before stays: it may go on, if this is no chunk of it */
		uint32_t	expected = s->next - s->start;

		s = get_stream(streams);
		begin_run(s, first, first->block, expected);
	}
	else if (first->block > s->next)
		s->length /= 2;
	s->length += n;
	s->reads++;
	s->next = first->block + n;
	s->last_use = ++streams->clock;
	return s;
}

uint32_t
rbp_stream_plan(RbpStream *stream, uint32_t block, uint32_t max,
				uint32_t file_blocks, uint32_t *from)
{
	uint32_t	n = stream->window * 2;
	uint32_t	reading = stream->next - block;
	uint32_t	end;

	/* the run is longer than the last one: expect nothing any more */
	if (stream->next - stream->start > stream->expected)
		stream->expected = 0;
	if (!is_run(stream) && stream->expected == 0)
		return 0;
	if (stream->planned > block)
	{
		if (stream->next + stream->window / 2 < stream->planned)
			return 0;
		*from = stream->planned;
	}
	else
		*from = block;
	/* the caller has opened the file that is being read, not the next one */
	if (*from / file_blocks != block / file_blocks)
		return 0;
	if (stream->window == 0)
		n = stream->expected > 0 ? stream->expected : FIRST_WINDOW;
	/* a run that has been short so far may end soon */
	if (stream->expected == 0 && n > stream->length)
		n = stream->length;
	if (*from == block && n < 2 * reading)
		n = 2 * reading;
	if (n > max)
		n = max;
	if (stream->expected > 0)
	{
		end = stream->start + stream->expected;
		if (*from >= end)
			return 0;
		if (n > end - *from)
			n = end - *from;
	}
	if (n > file_blocks - *from % file_blocks)
		n = file_blocks - *from % file_blocks;
	/* the block numbers end, too */
	if (n > UINT32_MAX - *from)
		n = UINT32_MAX - *from;
	/* nothing of it is ahead of the read */
	if (n == 0 || *from + n <= stream->next)
		return 0;
	stream->window = n;
	stream->planned = *from + n;
	return n;
}
