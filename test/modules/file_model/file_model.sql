-- The functions of file_model.c; :module is its path.
CREATE SCHEMA file_model;
SET search_path = file_model;

-- Steps on files of this session's alone; profile: random, blocks,
-- overwrites, streams, many, named or relations (of temporary tables).
CREATE FUNCTION file_model(seed int, steps int, profile text, eio_allowed bool DEFAULT false)
RETURNS text LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_buffile(seed int, steps int)
RETURNS text LANGUAGE C STRICT AS :'module';

-- Files that several sessions have open; a handle ends with the transaction.
CREATE FUNCTION file_model_set() RETURNS bytea LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_set_delete(file_set bytea)
RETURNS void LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_open(file_set bytea, name text, how text)
RETURNS int LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_path(handle int)
RETURNS text LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_close(handle int)
RETURNS void LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_unlink(file_set bytea, name text)
RETURNS bool LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_steps(handle int, seed int, from_step int, to_step int, profile text)
RETURNS text LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_check(handle int, seed int, steps int, profile text, check_seed int)
RETURNS text LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_check_prefix(handle int, seed int, steps int, profile text, check_seed int, reads int)
RETURNS int LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_stripes(handle int, seed int, writer int, writers int, unit int, units int, rounds int)
RETURNS int LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_stripes_check(handle int, seed int, unit int, units int, round int)
RETURNS int LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_buffile_write(file_set bytea, name text, seed int, bytes int)
RETURNS int LANGUAGE C STRICT AS :'module';
CREATE FUNCTION file_model_buffile_check(file_set bytea, name text, files int, bytes int)
RETURNS int LANGUAGE C STRICT AS :'module';
