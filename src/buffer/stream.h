/*-------------------------------------------------------------------------
 *
 * stream.h
 *	  Recognizes reads of consecutive blocks, and says what to read ahead.
 *
 * A stream is a sequence of reads of one relation fork; a run is a part of it
 * in which blocks are read in order.  What is read ahead of a run is cut into
 * windows.  Windows begin small and double, so that a short run costs little,
 * and a new one is due when half of the last one has been read, so that it
 * arrives while the process works on the rest.
 *
 * A parallel scan gives each process chunks of the table, of equal length.  So
 * when a run breaks off and goes on a little further, the new run is expected
 * to be as long as the last one: it is read ahead at once, but not past that
 * length, since the blocks behind it belong to another process.
 *
 * Plain arithmetic; does not use the server's headers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef RBP_STREAM_H
#define RBP_STREAM_H

#include <stdint.h>

#include "buffer/page.h"

#define RBP_STREAMS			8

typedef struct RbpStream
{
	RbpPageId	fork;			/* its block is not used */
	uint32_t	start;			/* first block of the run */
	uint32_t	next;			/* block after the last one read */
	uint32_t	length;			/* blocks read in a row; less after a gap */
	uint32_t	reads;			/* reads of the run so far */
	uint32_t	window;			/* blocks of the last window; 0: none yet */
	uint32_t	planned;		/* block after the last window */
	uint32_t	expected;		/* length of the run before, if the run is
								 * expected to be as long, else 0 */
	uint64_t	last_use;		/* 0: it was never used */
} RbpStream;

/* All zeros: nothing was read yet. */
typedef struct RbpStreams
{
	RbpStream	streams[RBP_STREAMS];
	uint64_t	clock;
} RbpStreams;

/*
 * Note a read of n consecutive blocks, of which that page is the first.
 * Returns the stream that it belongs to, which is a new one if there was none;
 * then the least recently used one is given up.
 */
extern RbpStream *rbp_stream_note(RbpStreams *streams, const RbpPageId *first,
								  uint32_t n);

/*
 * Is a window due, after the noted read that began at that block?  Returns its
 * number of blocks, at most max, and its first block in *from; 0 if none is.
 * It is the stream's last window from then on.
 *
 * The window begins with the block that is being read, unless that is in the
 * window before.  It is in the same file of file_blocks as the read.
 */
extern uint32_t rbp_stream_plan(RbpStream *stream, uint32_t block, uint32_t max,
								uint32_t file_blocks, uint32_t *from);

#endif							/* RBP_STREAM_H */
