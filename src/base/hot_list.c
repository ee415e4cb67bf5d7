/*-------------------------------------------------------------------------
 *
 * hot_list.c
 *	  Lists of hot pages, in files.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "storage/fd.h"

#include "base/hot_list.h"

#define NAME_LEN	128

StaticAssertDecl(sizeof(RbpHotPart) == 20, "a part has no padding");

/*
 * ---- writing --------------------------------------------------------------------
 */

static void
new_name(const RbpHotWriter *writer, char name[NAME_LEN])
{
	snprintf(name, NAME_LEN, "%s.new", writer->name);
}

bool
rbp_hot_create(RbpHotWriter *writer, const char *name)
{
	char		path[NAME_LEN];

	memset(writer, 0, sizeof(*writer));
	writer->name = name;
	writer->bytes = sizeof(RbpHotHeader);
	new_name(writer, path);
	writer->file = AllocateFile(path, PG_BINARY_W);
	if (writer->file == NULL)
		return false;
	/* finish() writes it once more, and notices if that fails */
	(void) fwrite(&writer->header, sizeof(writer->header), 1, writer->file);
	return true;
}

bool
rbp_hot_add(RbpHotWriter *writer, const RbpHotPart *part, const uint8_t *bitmap)
{
	Assert(part->length > 0 && part->length <= RBP_HOT_BITMAP_BYTES);
	if (writer->bytes + sizeof(*part) + part->length > RBP_HOT_LIST_MAX)
		return false;
	writer->bytes += sizeof(*part) + part->length;
	writer->header.pages[part->class] += rbp_hot_count(part, bitmap, 0);
	(void) fwrite(part, sizeof(*part), 1, writer->file);
	(void) fwrite(bitmap, part->length, 1, writer->file);
	return true;
}

bool
rbp_hot_finish(RbpHotWriter *writer)
{
	char		path[NAME_LEN];
	bool		written;

	writer->header.format = RBP_HOT_FORMAT;
	new_name(writer, path);
	written = !ferror(writer->file) && fseek(writer->file, 0, SEEK_SET) == 0 &&
		fwrite(&writer->header, sizeof(writer->header), 1, writer->file) == 1;
	written = FreeFile(writer->file) == 0 && written;
	writer->file = NULL;
	return written && rename(path, writer->name) == 0;
}

void
rbp_hot_abandon(RbpHotWriter *writer)
{
	char		path[NAME_LEN];

	if (writer->file != NULL)
		(void) FreeFile(writer->file);
	writer->file = NULL;
	new_name(writer, path);
	(void) unlink(path);
}

/*
 * ---- reading --------------------------------------------------------------------
 */

bool
rbp_hot_open(RbpHotReader *reader, const char *name)
{
	/* not one that the server may close, and open again by its name */
	reader->file = fopen(name, PG_BINARY_R);
	if (reader->file == NULL)
		return false;
	if (fread(&reader->header, sizeof(reader->header), 1, reader->file) == 1 &&
		reader->header.format == RBP_HOT_FORMAT)
		return true;
	rbp_hot_close(reader);
	errno = EINVAL;
	return false;
}

bool
rbp_hot_next(RbpHotReader *reader, RbpHotPart *part)
{
	return fread(part, sizeof(*part), 1, reader->file) == 1 &&
		part->length > 0 && part->length <= RBP_HOT_BITMAP_BYTES && part->class < RBP_HOT_CLASSES &&
		fread(reader->bitmap, part->length, 1, reader->file) == 1;
}

void
rbp_hot_close(RbpHotReader *reader)
{
	(void) fclose(reader->file);
}
