/*-------------------------------------------------------------------------
 *
 * test_json.c
 *	  How many values a text may decode to: never fewer than it does.
 *
 *-------------------------------------------------------------------------
 */
#include "common/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "tap.h"

static size_t
bound(const char *text)
{
	return rbp_json_values(text, strlen(text));
}

/* As jansson has decoded them. */
static size_t
count(const json_t *value)
{
	size_t		n = 1;
	size_t		i;
	const char *key;
	json_t	   *part;

	json_array_foreach((json_t *) value, i, part)
		n += count(part);
	json_object_foreach((json_t *) value, key, part)
		n += count(part);
	return n;
}

/* A random value: text, number, array or object. */
static json_t *
make(uint64_t *random, int levels)
{
	static const char *const texts[] = {"", ",", "[{", "\\", "\"", "\\\",[", "a\\\\"};
	int			kind = (int) (next_random(random) % (levels > 0 ? 4 : 2));
	int			n = (int) (next_random(random) % 4);
	json_t	   *value = kind == 0 ? json_string(texts[next_random(random) % 7]) :
	kind == 1 ? json_integer(n) : kind == 2 ? json_array() : json_object();

	for (int i = 0; i < n && kind == 2; i++)
		json_array_append_new(value, make(random, levels - 1));
	for (int i = 0; i < n && kind == 3; i++)
		json_object_set_new(value, texts[next_random(random) % 7], make(random, levels - 1));
	return value;
}

int
main(void)
{
	uint64_t	random = 1;
	int			fewer = 0;
	size_t		values = 0;
	size_t		bounds = 0;

	is_u64(rbp_json_values(NULL, 0), 1, "no text");
	is_u64(bound("[1,2,3]"), 4, "an array and its elements");
	is_u64(bound("{\"a\":1,\"b\":[]}"), 4, "an object and its members, and a place in an empty one");
	is_u64(bound("\",[{\""), 1, "a text is one value");
	is_u64(bound("\"\\\",\",1"), 2, "also with a quote in it");
	is_u64(bound("\"\\"), 1, "a text that ends within a string");
	is_u64(bound("[[[[[[[[[\"]\"]]]]]]]],[]]"), SIZE_MAX, "nine levels are too many");
	is_u64(bound("[[[[[[[[\"[\"]]]]]]],[]]"), 11, "eight are not");

	for (int i = 0; i < 10000; i++)
	{
		json_t	   *value = make(&random, 4);
		char	   *text = json_dumps(value, JSON_ENCODE_ANY);

		fewer += bound(text) < count(value);
		values += count(value);
		bounds += bound(text);
		free(text);
		json_decref(value);
	}
	is_u64(fewer, 0, "no text has more values than were counted");
	ok(bounds < 2 * values, "and not much fewer (%zu of %zu)", values, bounds);
	return done_testing();
}
