/* Checkpoints: checksums, tables, slices, bundles, records, and the ops on them. tests/parity/test_ckpt.py compares the same files with
 * TensorFlow's, byte for byte. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "ckpt/bundle.h"
#include "ckpt/crc32c.h"
#include "ckpt/record.h"
#include "ckpt/snappy.h"
#include "ckpt/snapshot.h"
#include "ckpt/sstable.h"
#include "ckpt/v1.h"
#include "proto/pbw.h"
#include "restest.h"
#include "tensor/tensor_pb.h"

static char dir[] = "/tmp/trainera-ckpt-XXXXXX";
static char path_buf[8][512];

/* dir/name; eight of them live at a time. */
static const char *in_dir(const char *name)
{
    static int next;
    char *p = path_buf[next++ % 8];
    snprintf(p, sizeof path_buf[0], "%s/%s", dir, name);
    return p;
}

/* Files whose name contains `part`. */
static int count_files(const char *part)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

static int clean_dir(void **state)
{
    (void)state;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        (void)!remove(in_dir(e->d_name));
    closedir(d);
    trn_faults_set(NULL);
    return 0;
}

static uint32_t rng_state = 1;
static uint32_t rng(void) { return rng_state = rng_state * 1664525u + 1013904223u; }

/* ---- checksums -------------------------------------------------------------------------------------------------- */

static void checksums(void **state)
{
    (void)state;
    assert_int_equal(trn_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(trn_crc32c(0, (char[32]){0}, 32), 0x8a9136aau);
    assert_int_equal(trn_crc32c_unmask(trn_crc32c_mask(0x12345678)), 0x12345678);
    uint8_t *p = trn_xalloc(20000);
    for (int i = 0; i < 20000; i++)
        p[i] = (uint8_t)(rng() >> 24);
    for (int i = 0; i < 200; i++) {
        size_t at = rng() % 64, n = rng() % 19000, cut = n ? rng() % n : 0;
        uint32_t want = trn_crc32c_by_table(0, p + at, n);
        assert_int_equal(trn_crc32c(0, p + at, n), want);
        assert_int_equal(trn_crc32c(trn_crc32c(0, p + at, cut), p + at + cut, n - cut), want);
    }
    free(p);
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

enum { KEYS = 30000 };

static void key_of(char out[32], int i) { snprintf(out, 32, "key/%06d%s", i * 2, i % 3 ? "" : "/more"); }

static void tables(void **state)
{
    (void)state;
    const char *path = in_dir("table");
    trn_outfile o;
    ok(trn_outfile_open(&o, path));
    trn_sst_writer *w = trn_sst_writer_new(&o);
    char key[32], val[64];
    for (int i = 0; i < KEYS; i++) { /* several blocks */
        key_of(key, i);
        int n = snprintf(val, sizeof val, "value %d, long enough to fill blocks", i);
        ok(trn_sst_add(w, key, strlen(key), val, (size_t)n));
    }
    fails(trn_sst_add(w, "a", 1, "", 0), TRN_INTERNAL, "rise");
    ok(trn_sst_finish(w));
    trn_sst_writer_free(w);
    assert_false(trn_path_exists(path)); /* not before commit */
    ok(trn_outfile_commit(&o));
    trn_infile f;
    trn_sst *t;
    trn_sst_entry e;
    bool found;
    ok(trn_infile_open(&f, path));
    ok(trn_sst_open(&t, &f));
    for (int i = 0; i < KEYS; i++) {
        ok(trn_sst_next(&e, &found, t));
        key_of(key, i);
        assert_true(found && e.n_key == strlen(key) && !memcmp(e.key, key, e.n_key));
    }
    ok(trn_sst_next(&e, &found, t));
    assert_false(found);
    for (int k = 0; k < 2000; k++) {
        int i = (int)(rng() % KEYS);
        key_of(key, i);
        bool between = rng() % 2;
        if (between) /* just before it */
            key[9]--, memcpy(key + 10, "~", 2);
        ok(trn_sst_seek(t, key, strlen(key)));
        ok(trn_sst_next(&e, &found, t));
        key_of(key, i);
        assert_true(found &&
                    (between ? memcmp(e.key, key, 9) <= 0 : e.n_key == strlen(key) && !memcmp(e.key, key, e.n_key)));
    }
    ok(trn_sst_seek(t, "zzz", 3));
    ok(trn_sst_next(&e, &found, t));
    assert_false(found);
    trn_sst_close(t);
    trn_infile_close(&f);
}

static trn_err read_all(int *entries, trn_infile *f)
{
    trn_sst *t;
    *entries = 0;
    TRN_TRY(trn_sst_open(&t, f));
    trn_err err;
    for (bool found = true; found; *entries += found) {
        trn_sst_entry e;
        err = trn_sst_next(&e, &found, t);
        if (err)
            break;
    }
    trn_sst_close(t);
    return err;
}

static void damaged_tables(void **state)
{
    (void)state;
    trn_outfile o;
    ok(trn_outfile_open(&o, in_dir("t")));
    trn_sst_writer *w = trn_sst_writer_new(&o);
    ok(trn_sst_add(w, "", 0, "header", 6));
    ok(trn_sst_add(w, "a", 1, "1", 1));
    ok(trn_sst_add(w, "ab", 2, "22", 2));
    ok(trn_sst_finish(w));
    trn_sst_writer_free(w);
    ok(trn_outfile_commit(&o));
    uint8_t b[512];
    int fd = open(in_dir("t"), O_RDONLY);
    ssize_t n = read(fd, b, sizeof b);
    close(fd);
    int entries;
    for (ssize_t i = 0; i < n * 8; i++) { /* every bit: an error, or no difference (padding, the unused metaindex) */
        b[i / 8] ^= (uint8_t)(1 << i % 8);
        trn_infile f;
        trn_infile_on_memory(&f, "memory", b, (size_t)n);
        trn_err err = read_all(&entries, &f);
        assert_true(err ? trn_err_code(err) == TRN_DATA_LOSS || trn_err_code(err) == TRN_UNIMPLEMENTED : entries == 3);
        trn_err_free(err);
        trn_infile_close(&f);
        b[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    for (ssize_t i = 0; i < n; i++) { /* every length */
        trn_infile f;
        trn_infile_on_memory(&f, "memory", b, (size_t)i);
        fails(read_all(&entries, &f), TRN_DATA_LOSS, "memory");
        trn_infile_close(&f);
    }
}

/* ---- slices ----------------------------------------------------------------------------------------------------- */

static void slices(void **state)
{
    (void)state;
    trn_shape shape;
    trn_slicespec s;
    ok(trn_slicespec_parse(&shape, &s, "10 4 0,6:-", 10));
    assert_int_equal(shape.rank, 2);
    assert_int_equal(s.length[0], 6);
    assert_int_equal(s.length[1], -1);
    trn_sb key = {0};
    trn_slicespec_key(&key, "p", 1, &s);
    assert_int_equal(key.n, 10);
    assert_memory_equal(key.p, "\x00\x70\x00\x01\x01\x02\x80\x86\x80\x7f", 10);
    key.n = 0;
    s = (trn_slicespec){.rank = 2, .start = {64, 8192}, .length = {INT64_MAX, 1 << 20}};
    trn_slicespec_key(&key, "\0\xff", 2, &s);
    assert_memory_equal(key.p,
                        "\x00\x00\xff\xff\x00\x00\x01\x01\x02\xc0\x40\xff\xc0\x7f\xff\xff\xff\xff\xff\xff\xff\xe0\x20"
                        "\x00\xf0\x10\x00\x00",
                        key.n);
    trn_sb_fini(&key);
    static const char *const bad[] = {"",
                                      "10",
                                      "10 ",
                                      "10 4 0,6",
                                      "10 0,11",
                                      "10 -1,2",
                                      "10 5,6",
                                      "x 0,1",
                                      "10 0,0",
                                      "10 0",
                                      "10 0,1,2",
                                      "10 0,1x",
                                      "10  0,1",
                                      "-5 0,1",
                                      "10 0;1",
                                      "10 9223372036854775807,1",
                                      "99999999999999999999 -"};
    for (size_t i = 0; i < TRN_COUNTOF(bad); i++) {
        trn_err e = trn_slicespec_parse(&shape, &s, bad[i], strlen(bad[i]));
        if (strcmp(bad[i], "10 ") == 0 && !e)
            fail_msg("\"10 \" has no slice");
        fails(e, TRN_INVALID_ARGUMENT, "");
    }
}

/* ---- bundles ---------------------------------------------------------------------------------------------------- */

static void save_one(const char *prefix, const char *name, TRN_OWN trn_tensor *t)
{
    trn_bundle_writer *w;
    ok(trn_bundle_writer_open(&w, prefix));
    ok(trn_bundle_add(w, name, strlen(name), t));
    ok(trn_bundle_finish(w));
    trn_tensor_unref(t);
}

static trn_err load_one(trn_tensor **out, const char *prefix, const char *name)
{
    trn_bundle *b;
    TRN_TRY(trn_bundle_open(&b, prefix));
    trn_err err = trn_bundle_read(out, b, name, strlen(name));
    trn_bundle_close(b);
    return err;
}

enum { NAMES = 12000 };
static trn_err count_name(void *arg, const char *name, size_t n, trn_dtype dtype, const trn_shape *shape)
{
    (void)name;
    (void)n;
    assert_true(dtype == TRN_INT32 && shape->rank == 1);
    ++*(int *)arg;
    return TRN_OK;
}

static void many_names(void **state)
{
    (void)state;
    trn_bundle_writer *w;
    char name[64];
    ok(trn_bundle_writer_open(&w, in_dir("many")));
    for (int i = 0; i < NAMES; i++) { /* not in order */
        int k = i * 7919 % NAMES;
        snprintf(name, sizeof name, "layer_%d/weights/Adam_%d", k % 97, k);
        trn_tensor *t = OPTEST_I32(k, -k, 7);
        ok(trn_bundle_add(w, name, strlen(name), t));
        if (!i)
            fails(trn_bundle_add(w, name, strlen(name), t), TRN_INVALID_ARGUMENT, "duplicate key");
        trn_tensor_unref(t);
    }
    ok(trn_bundle_finish(w));
    trn_bundle *b;
    ok(trn_bundle_open(&b, in_dir("many")));
    int n = 0;
    ok(trn_bundle_each(b, count_name, &n));
    assert_int_equal(n, NAMES);
    for (int i = 0; i < NAMES; i += 5) {
        snprintf(name, sizeof name, "layer_%d/weights/Adam_%d", i % 97, i);
        trn_tensor *t;
        ok(trn_bundle_read(&t, b, name, strlen(name)));
        assert_int_equal(TRN_DATA(t, int32_t)[1], -i);
        trn_tensor_unref(t);
    }
    trn_tensor *t;
    fails(trn_bundle_read(&t, b, "layer_1/weights", 15), TRN_NOT_FOUND, "Key layer_1/weights not found in checkpoint");
    trn_bundle_close(b);
}

static trn_tensor *rows(int from, int n)
{
    trn_shape s = trn_shape_of(2, (int64_t)n, (int64_t)3);
    trn_tensor *t;
    ok(trn_tensor_new(&t, TRN_INT32, &s));
    for (int i = 0; i < n * 3; i++)
        TRN_DATA_MUT(t, int32_t)[i] = from * 3 + i;
    return t;
}

static void add_rows(trn_bundle_writer *w, int from, int n)
{
    trn_shape full = trn_shape_of(2, (int64_t)100, (int64_t)3);
    trn_slicespec s = {.rank = 2, .start = {from, 0}, .length = {n, -1}};
    trn_tensor *t = rows(from, n);
    ok(trn_bundle_add_slice(w, "part", 4, &full, &s, t));
    trn_tensor_unref(t);
}

static void partitioned(void **state)
{
    (void)state;
    trn_bundle_writer *w;
    ok(trn_bundle_writer_open(&w, in_dir("p0")));
    add_rows(w, 0, 40);
    trn_shape other = trn_shape_of(2, (int64_t)90, (int64_t)3);
    trn_tensor *t = rows(40, 10);
    trn_slicespec s = {.rank = 2, .start = {40, 0}, .length = {10, -1}};
    fails(trn_bundle_add_slice(w, "part", 4, &other, &s, t), TRN_INVALID_ARGUMENT, "different");
    trn_tensor_unref(t);
    ok(trn_bundle_finish(w));
    fails(load_one(&t, in_dir("p0"), "part"), TRN_INVALID_ARGUMENT, "sufficient slices");
    ok(trn_bundle_writer_open(&w, in_dir("p1")));
    add_rows(w, 70, 30);
    add_rows(w, 40, 30);
    ok(trn_bundle_finish(w));
    const char *parts[] = {in_dir("p0"), in_dir("p1"), in_dir("p2")};
    fails(trn_bundle_merge(parts, 3, in_dir("all"), false), TRN_INVALID_ARGUMENT, "did not exist");
    ok(trn_bundle_merge(parts, 3, in_dir("all"), true));
    assert_int_equal(count_files("p0") + count_files("p1"), 0);
    assert_int_equal(count_files("all.data-0000"), 2);
    ok(load_one(&t, in_dir("all"), "part"));
    for (int i = 0; i < 300; i++)
        assert_int_equal(TRN_DATA(t, int32_t)[i], i);
    trn_tensor_unref(t);
    trn_bundle *b;
    ok(trn_bundle_open(&b, in_dir("all")));
    s = (trn_slicespec){.rank = 2, .start = {30, 1}, .length = {50, 2}};
    ok(trn_bundle_read_slice(&t, b, "part", 4, &s));
    for (int i = 0; i < 100; i++)
        assert_int_equal(TRN_DATA(t, int32_t)[i], (30 + i / 2) * 3 + 1 + i % 2);
    trn_tensor_unref(t);
    s.length[0] = 71;
    fails(trn_bundle_read_slice(&t, b, "part", 4, &s), TRN_INVALID_ARGUMENT, "inside");
    trn_bundle_close(b);
    fails(trn_bundle_merge(parts, 3, in_dir("all2"), true), TRN_INVALID_ARGUMENT, "none existed");
}

/* A failing disk leaves the old checkpoint, or none: never a mixture, never litter. */
static void failing_disk(void **state)
{
    (void)state;
    static const char *const points[] = {"ckpt.open:1",  "ckpt.open:2",  "ckpt.write:1",  "ckpt.write:2",
                                         "ckpt.fsync:1", "ckpt.fsync:2", "ckpt.rename:1", "ckpt.rename:2"};
    for (size_t i = 0; i < TRN_COUNTOF(points); i++) {
        save_one(in_dir("x"), "v", trn_tensor_i32(1));
        trn_faults_set(points[i]);
        trn_bundle_writer *w;
        trn_err e = trn_bundle_writer_open(&w, in_dir("x"));
        if (!e) {
            trn_tensor *t = trn_tensor_i32(2);
            e = trn_bundle_add(w, "v", 1, t);
            trn_tensor_unref(t);
            if (e)
                trn_bundle_abort(w);
            else
                e = trn_bundle_finish(w);
        }
        trn_faults_set(NULL);
        if (!e)
            fail_msg("%s did not fail", points[i]);
        trn_err_free(e);
        assert_int_equal(count_files("tempstate"), 0);
        trn_tensor *t;
        e = load_one(&t, in_dir("x"), "v");
        if (!e) {
            assert_int_equal(TRN_DATA(t, int32_t)[0], 1);
            trn_tensor_unref(t);
        } else {
            fails(e, TRN_NOT_FOUND, "x.index");
        }
    }
}

/* kill -9 at any moment: what is there is whole. */
static void killed(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            trn_shape s = trn_shape_vector(50000);
            for (int i = 0;; i++) {
                trn_tensor *t;
                if (trn_tensor_new(&t, TRN_INT32, &s))
                    _exit(1);
                for (int k = 0; k < 50000; k++)
                    TRN_DATA_MUT(t, int32_t)[k] = i;
                save_one(in_dir("k"), "v", t);
            }
        }
        struct timespec nap = {.tv_nsec = 3000000 + (rng() >> 8) % 12000000};
        nanosleep(&nap, NULL);
        kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status));
        trn_tensor *t;
        trn_err e = load_one(&t, in_dir("k"), "v");
        if (e) {
            fails(e, TRN_NOT_FOUND, "k.index");
            continue;
        }
        for (int k = 1; k < 50000; k++)
            assert_int_equal(TRN_DATA(t, int32_t)[k], TRN_DATA(t, int32_t)[0]);
        trn_tensor_unref(t);
    }
}

/* ---- records ---------------------------------------------------------------------------------------------------- */

static void records(void **state)
{
    (void)state;
    trn_outfile o;
    ok(trn_outfile_open(&o, in_dir("r")));
    for (size_t n = 0; n < 300; n += 37) {
        uint8_t head[TRN_RECORD_HEAD], tail[TRN_RECORD_TAIL], body[300];
        memset(body, (int)n, n);
        trn_record_head(head, n);
        trn_record_tail(tail, body, n);
        ok(trn_outfile_write(&o, head, sizeof head));
        ok(trn_outfile_write(&o, body, n));
        ok(trn_outfile_write(&o, tail, sizeof tail));
    }
    ok(trn_outfile_commit(&o));
    trn_infile f;
    ok(trn_infile_open(&f, in_dir("r")));
    uint64_t at = 0;
    uint8_t *p;
    size_t n;
    bool found;
    for (size_t want = 0; want < 300; want += 37) {
        ok(trn_record_read(&p, &n, &found, &f, &at, 1000));
        assert_true(found && n == want && (!n || p[n - 1] == (uint8_t)want));
        free(p);
    }
    ok(trn_record_read(&p, &n, &found, &f, &at, 1000));
    assert_false(found);
    at = 3;
    fails(trn_record_read(&p, &n, &found, &f, &at, 1000), TRN_DATA_LOSS, "corrupted record at 3");
    at = f.size - 5;
    fails(trn_record_read(&p, &n, &found, &f, &at, 1000), TRN_DATA_LOSS, "truncated record");
    trn_infile_close(&f);
}

/* ---- compressed bytes, saved datasets --------------------------------------------------------------------------- */

static void there_and_back(const void *p, size_t n, size_t most)
{
    trn_sb s = {0};
    size_t size;
    trn_snappy_compress(&s, p, n);
    assert_true(s.n <= most);
    ok(trn_snappy_size(&size, s.p, s.n));
    assert_int_equal(size, n);
    uint8_t *back = trn_xalloc(n + 1);
    ok(trn_snappy_uncompress(back, n, s.p, s.n));
    assert_memory_equal(back, p, n);
    for (size_t cut = 0; cut < s.n && cut < 2000; cut++) { /* in memory of that size: the sanitizer sees who reads beyond */
        uint8_t *part = malloc(cut + 1);
        memcpy(part, s.p, cut);
        trn_err err = trn_snappy_uncompress(back, n, part, cut);
        assert_true(err || n == 0);
        trn_err_free(err);
        free(part);
    }
    free(back);
    trn_sb_fini(&s);
}

static void snappy(void **state)
{
    (void)state;
    static uint8_t p[300000];
    for (size_t n = 0; n < 300; n++)
        there_and_back(p, n, n < 20 ? 22 : 40);
    there_and_back(p, sizeof p, sizeof p / 18);
    for (size_t i = 0; i < sizeof p; i++)
        p[i] = (uint8_t)(rng() >> 24);
    there_and_back(p, sizeof p, sizeof p + sizeof p / 6);
    for (size_t i = 0; i < sizeof p; i++)
        p[i] = (uint8_t)(i % 1000 < 900 ? i % 97 : rng() >> 29);
    for (size_t n = 65530; n < 65560; n += 5)
        there_and_back(p, n, n / 2);
    /* Copies of all kinds, over themselves and from afar; by hand, from the format's description. */
    static const uint8_t kinds[] = {19, 2 << 2, 'a', 'b', 'c', 0 << 5 | 1 << 2 | 1, 3, 3 << 2 | 2, 5, 0, 1 << 2 | 3, 9, 0, 0, 0, 61 << 2, 0, 0, '!', 60 << 2, 0, '?', 2 << 2 | 2, 19 - 3, 0};
    char out[20] = {0};
    ok(trn_snappy_uncompress(out, 19, kinds, sizeof kinds));
    assert_string_equal(out, "abcabcababcaab!?abc");
    size_t size;
    fails(trn_snappy_size(&size, "\xff\xff\xff\xff\x0f", 5), TRN_DATA_LOSS, "so few bytes");
    fails(trn_snappy_size(&size, "\xff\xff\xff\xff\xff\xff", 6), TRN_DATA_LOSS, "no length");
    fails(trn_snappy_size(&size, "", 0), TRN_DATA_LOSS, "no length");
    fails(trn_snappy_uncompress(out, 4, "\x04\x00" "a\x01\x02", 5), TRN_DATA_LOSS, "a copy reaches beyond");
    fails(trn_snappy_uncompress(out, 4, "\x04\x00" "a\x02\x00\x00", 6), TRN_DATA_LOSS, "a copy reaches beyond");
    fails(trn_snappy_uncompress(out, 4, "\x04\x10" "abcde", 7), TRN_DATA_LOSS, "a literal reaches beyond");
    fails(trn_snappy_uncompress(out, 4, "\x04\x08" "abc", 5), TRN_DATA_LOSS, "bytes are missing");
    fails(trn_snappy_uncompress(out, 5, "\x04\x0c" "abcd", 6), TRN_DATA_LOSS, "the length is not");
    trn_stream *s; /* a block so large that nobody wrote it: its bytes are not even looked for */
    ok(trn_stream_on_memory(&s, "\xff\xff\xff\xff", 4, TRN_SNAPPY));
    fails(trn_stream_fill(s), TRN_DATA_LOSS, "no compressed block has 4294967295 bytes");
    trn_stream_close(s);
}

/* Elements of a run's only shard. */
static int read_run(const char *top, trn_compression c)
{
    static const trn_dtype types[] = {TRN_INT64, TRN_STRING};
    trn_snapshot_meta m;
    trn_snapshot_file *f;
    trn_tensor *t[2];
    bool found;
    char **shard, *name;
    int n, elements = 0;
    ok(trn_snapshot_meta_read(&m, &found, top));
    assert_true(found && m.finished && m.version == 2);
    ok(trn_snapshot_shards(&shard, &n, top, &m));
    assert_int_equal(n, 1);
    ok(trn_snapshot_file_open(&f, name = trn_snapshot_file_name(shard[0], 0), c, m.version, types, 2));
    for (trn_cut got = TRN_CUT_MORE; got != TRN_CUT_END;) {
        ok(trn_snapshot_file_next(&got, f, t));
        if (got == TRN_CUT_MORE)
            ok(trn_snapshot_file_fill(f));
        if (got != TRN_CUT_GOT)
            continue;
        assert_int_equal(TRN_DATA(t[0], int64_t)[0], elements++);
        trn_tensor_unref(t[0]);
        trn_tensor_unref(t[1]);
    }
    assert_int_equal(m.elements, elements);
    trn_snapshot_file_close(f);
    trn_snapshot_meta_fini(&m);
    free(name);
    free(shard[0]);
    free(shard);
    return elements;
}

/* The folder's entries come first, then the metadata that say that all is there. */
static void entries_before_metadata(const char *top, trn_tensor *const *t, const trn_dtype *types)
{
    trn_snapshot_run *r;
    trn_snapshot_meta m;
    bool found;
    ok(trn_snapshot_run_open(&r, top, "", TRN_PLAIN, types, 2));
    ok(trn_snapshot_run_add(r, 0, t, 2));
    trn_faults_set("ckpt.fsync_dir:2"); /* the first is the shard's, for its file */
    fails(trn_snapshot_run_finish(r, 1), TRN_DATA_LOSS, "fsync of ");
    trn_faults_set(NULL);
    ok(trn_snapshot_meta_read(&m, &found, top));
    assert_true(found && !m.finished);
    trn_snapshot_meta_fini(&m);
}

/* More than readers take is not written. */
static void huge_component(const char *top)
{
    trn_snapshot_run *r;
    trn_tensor *t;
    trn_dtype type = TRN_UINT8;
    trn_shape shape = trn_shape_of(1, (1L << 30) + 1);
    ok(trn_tensor_new(&t, type, &shape));
    ok(trn_snapshot_run_open(&r, top, "", TRN_PLAIN, &type, 1));
    fails(trn_snapshot_run_add(r, 0, &t, 1), TRN_RESOURCE_EXHAUSTED, "1 GiB");
    trn_snapshot_run_drop(r);
    trn_tensor_unref(t);
}

static void snapshots(void **state)
{
    (void)state;
    static const trn_dtype types[] = {TRN_INT64, TRN_STRING};
    static char text[3000];
    memset(text, 'x', sizeof text);
    char *top = trn_xasprintf("%s-snapshots", dir);
    for (int c = TRN_PLAIN; c <= TRN_SNAPPY; c++) {
        trn_snapshot_run *r;
        ok(trn_snapshot_run_open(&r, top, "7", (trn_compression)c, types, 2));
        trn_snapshot_meta m;
        bool found;
        ok(trn_snapshot_meta_read(&m, &found, top));
        assert_true(found && !m.finished);
        trn_snapshot_meta_fini(&m);
        for (int i = 0; i < 500; i++) {
            trn_tensor *t[2] = {trn_tensor_i64(i), trn_tensor_str(text, (size_t)i * 6)};
            ok(trn_snapshot_run_add(r, 0, t, 2));
            trn_tensor_unref(t[0]);
            trn_tensor_unref(t[1]);
        }
        ok(trn_snapshot_run_finish(r, 500));
        assert_int_equal(read_run(top, (trn_compression)c), 500);
    }
    trn_snapshot_run *r;
    trn_tensor *t[2] = {trn_tensor_i64(0), trn_tensor_str("a", 1)};
    trn_faults_set("ckpt.write");
    trn_err err = trn_snapshot_run_open(&r, top, "", TRN_PLAIN, types, 2);
    assert_int_equal(trn_err_code(err), TRN_RESOURCE_EXHAUSTED);
    trn_err_free(err);
    trn_faults_set(NULL);
    assert_int_equal(read_run(top, TRN_SNAPPY), 500); /* the last one is still there */
    ok(trn_snapshot_run_open(&r, top, "", TRN_SNAPPY, types, 2));
    ok(trn_snapshot_run_add(r, -1, t, 2));
    trn_faults_set("ckpt.fsync");
    err = trn_snapshot_run_finish(r, 1);
    assert_true(err);
    trn_err_free(err);
    trn_faults_set(NULL);
    entries_before_metadata(top, t, types);
    huge_component(top);
    trn_tensor_unref(t[0]);
    trn_tensor_unref(t[1]);
    char *sh = trn_xasprintf("rm -r '%s'", top);
    assert_int_equal(system(sh), 0);
    free(sh);
    free(top);
}

/* ---- the ops ---------------------------------------------------------------------------------------------------- */

static trn_tensor *str(const char *s) { return trn_tensor_str(s, strlen(s)); }
#define STRS(...) OPTEST_VEC(TRN_STRING, const char *, __VA_ARGS__)

static void save_and_restore(void **state)
{
    (void)state;
    optest t;
    ok(RUN(&t, "SaveV2", "dtypes=[f32,str,f32]", str(in_dir("op")), STRS("w", "s", "part"), STRS("", "", "4 2,2"),
           OPTEST_F32(1, 2, 3), str("text"), OPTEST_F32(8, 9)));
    optest_end(&t);
    ok(RUN(&t, "RestoreV2", "dtypes=[str,f32,f32]", str(in_dir("op")), STRS("s", "w", "part"),
           STRS("", "3 1,2", "4 2,2")));
    size_t n;
    assert_memory_equal(trn_tensor_str_at(t.out[0].t, 0, &n), "text", 4);
    assert_true(t.out[1].t->count == 2 && TRN_DATA(t.out[1].t, float)[1] == 3);
    assert_true(TRN_DATA(t.out[2].t, float)[1] == 9);
    optest_end(&t);
    fails(RUN(&t, "RestoreV2", "dtypes=[i32,f32]", str(in_dir("op")), STRS("s", "w"), STRS("", "")),
          TRN_INVALID_ARGUMENT, "tensor_name = s; expected dtype int32 does not equal original dtype string");
    optest_end(&t);
    fails(RUN(&t, "RestoreV2", "dtypes=[f32]", str(in_dir("op")), STRS("w"), STRS("4 1,2")), TRN_INVALID_ARGUMENT,
          "does not match the shape stored in checkpoint: [3]");
    optest_end(&t);
    fails(RUN(&t, "RestoreV2", "dtypes=[f32]", str(in_dir("nothing")), STRS("w"), STRS("")), TRN_NOT_FOUND,
          "Failed to find any matching files");
    optest_end(&t);
    fails(RUN(&t, "SaveV2", "dtypes=[f32]", str(in_dir("op2")), STRS("w", "v"), STRS("", ""), OPTEST_F32(1)),
          TRN_INVALID_ARGUMENT, "2 tensor names but 1 tensors");
    optest_end(&t);
    fails(RUN(&t, "SaveV2", "dtypes=[f32]", str(in_dir("op2")), STRS("w"), STRS("4 0,2"), OPTEST_F32(1)),
          TRN_INVALID_ARGUMENT, "does not match the shape of the tensor to save");
    optest_end(&t);
    assert_int_equal(count_files("op2"), 0);
    fails(RUN(&t, "SaveV2", "dtypes=[f32]", str(in_dir("no/such/op")), STRS("w"), STRS(""), OPTEST_F32(1)),
          TRN_NOT_FOUND, "no/such");
    optest_end(&t);
    ok(RUN(&t, "SaveSlices", "T=[f32,f32]", str(in_dir("v1")), STRS("b", "a"), STRS("", "4 1,2"), OPTEST_F32(5),
           OPTEST_F32(6, 7)));
    optest_end(&t);
    ok(RUN(&t, "RestoreSlice", "dt=f32", str(in_dir("v*")), str("a"), str("4 2,1")));
    assert_true(t.out[0].t->count == 1 && TRN_DATA(t.out[0].t, float)[0] == 7);
    optest_end(&t);
    ok(RUN(&t, "Restore", "dt=f32", str(in_dir("v1")), str("b")));
    optest_end(&t);
    fails(RUN(&t, "Restore", "dt=f32", str(in_dir("v1")), str("c")), TRN_NOT_FOUND,
          "Tensor name \"c\" not found in checkpoint files");
    optest_end(&t);
}

static void whole_files(void **state)
{
    (void)state;
    optest t;
    size_t n;
    ok(RUN(&t, "WriteFile", "", str(in_dir("w1")), trn_tensor_str("a\0b", 3)));
    optest_end(&t);
    ok(RUN(&t, "WriteFile", "", str(in_dir("w2")), str("")));
    optest_end(&t);
    ok(RUN(&t, "ReadFile", "", str(in_dir("w1"))));
    assert_memory_equal(trn_tensor_str_at(t.out[0].t, 0, &n), "a\0b", 3);
    assert_int_equal(n, 3);
    optest_end(&t);
    fails(RUN(&t, "ReadFile", "", str(in_dir("w3"))), TRN_NOT_FOUND, "w3");
    optest_end(&t);
    fails(RUN(&t, "ReadFile", "", trn_tensor_str("a\0b", 3)), TRN_INVALID_ARGUMENT, "zero byte");
    optest_end(&t);
    ok(RUN(&t, "MatchingFiles", "", STRS(in_dir("w?"), in_dir("none*"))));
    assert_int_equal(t.out[0].t->count, 2);
    const char *first = trn_tensor_str_at(t.out[0].t, 0, &n);
    assert_memory_equal(first + n - 2, "w1", 2);
    optest_end(&t);
    ok(RUN(&t, "ShardedFilename", "", str("b"), trn_tensor_i32(2), trn_tensor_i32(10)));
    assert_memory_equal(trn_tensor_str_at(t.out[0].t, 0, &n), "b-00002-of-00010", 16);
    optest_end(&t);
    ok(RUN(&t, "ShardedFilespec", "", str("b"), trn_tensor_i32(3)));
    assert_memory_equal(trn_tensor_str_at(t.out[0].t, 0, &n), "b-\?\?\?\?\?-of-00003", 16);
    optest_end(&t);
}

/* A CompressedElement that a peer sent: one component with these fields, and bytes. */
static trn_tensor *packed(const trn_sb *component, const char *raw, int version)
{
    trn_sb data = {0}, m = {0}, v = {0}, list = {0};
    trn_shape scalar = trn_shape_scalar();
    trn_tensor *x;
    trn_snappy_compress(&data, raw, strlen(raw));
    trn_pbw_bytes(&m, 1, data.p, data.n);
    trn_pbw_bytes(&m, 2, component->p, component->n);
    trn_pbw_varint(&m, 3, (uint64_t)version);
    trn_pbw_str(&v, 1, "tensorflow.data.CompressedElement");
    trn_pbw_bytes(&v, 2, m.p, m.n);
    trn_pbw_raw_varint(&list, v.n);
    trn_sb_add(&list, v.p, v.n);
    ok(trn_tensor_from_content(&x, TRN_VARIANT, &scalar, list.p, list.n));
    trn_sb_fini(&data);
    trn_sb_fini(&m);
    trn_sb_fini(&v);
    trn_sb_fini(&list);
    return x;
}

/* Whatever is wrong with the bytes is INTERNAL, as in TensorFlow. */
static void malformed_elements(void **state)
{
    static const struct {
        trn_dtype dtype;
        int dims, version;
        const char *raw, *sizes, *why;
    } cases[] = {
        {TRN_INT64, 0, 0, "12345678", "\x08", NULL},
        {TRN_INT64, 0, 1, "12345678", "\x08", "version 1 are not known"},
        {TRN_INT64, 0, 0, "1234", "\x04", "has 4 bytes"},
        {TRN_INT64, 0, 0, "12345678", "\x09", "bytes are missing"},
        {TRN_INT64, 0, 0, "123456789", "\x08", "more bytes than components"},
        {TRN_INT64, 40, 0, "12345678", "\x08", "too many dimensions"},
        {TRN_STRING, 0, 0, "ab", "\x01\x01", "as many strings"},
        {TRN_RESOURCE, 0, 0, "zzzz", "\x04", "malformed"},
    };
    (void)state;
    for (size_t i = 0; i < TRN_COUNTOF(cases); i++) {
        trn_sb c = {0}, shape = {0};
        for (int k = 0; k < cases[i].dims; k++)
            trn_pbw_bytes(&shape, 2, "\x08\x01", 2);
        trn_pbw_varint(&c, 1, (uint64_t)cases[i].dtype);
        trn_pbw_bytes(&c, 2, shape.p, shape.n);
        trn_pbw_bytes(&c, 4, cases[i].sizes, strlen(cases[i].sizes));
        optest t;
        trn_err err = RUN(&t, "UncompressElement", cases[i].dtype == TRN_STRING ? "output_types=[str], output_shapes=[?]" : "output_types=[i64], output_shapes=[?]",
                          packed(&c, cases[i].raw, cases[i].version));
        if (cases[i].why)
            fails(err, TRN_INTERNAL, cases[i].why);
        else
            ok(err);
        optest_end(&t);
        trn_sb_fini(&c);
        trn_sb_fini(&shape);
    }
}

/* ImmutableConst: no memory for what a file cannot fill, and no other files than regular ones. */
static void constants_in_files(void **state)
{
    (void)state;
    optest t;
    char attrs[600];
    ok(RUN(&t, "WriteFile", "", str(in_dir("c")), trn_tensor_str("\1\0\2", 3)));
    optest_end(&t);
    snprintf(attrs, sizeof attrs, "dtype=bool, shape=[3], memory_region_name=%s", in_dir("c"));
    ok(optest_run(&t, "ImmutableConst", attrs, NULL));
    assert_memory_equal(t.out[0].t->data, "\1\0\1", 3);
    optest_end(&t);
    snprintf(attrs, sizeof attrs, "dtype=f64, shape=[4611686018427387904], memory_region_name=%s", in_dir("c"));
    fails(optest_run(&t, "ImmutableConst", attrs, NULL), TRN_INTERNAL, "has 3 bytes");
    optest_end(&t);
    fails(optest_run(&t, "ImmutableConst", "dtype=f64, shape=[4], memory_region_name=/dev/zero", NULL), TRN_FAILED_PRECONDITION, "regular file");
    optest_end(&t);
    fails(optest_run(&t, "Skipgram", "filename=/dev/zero, batch_size=1, window_size=1, min_count=1, subsample=0", NULL), TRN_FAILED_PRECONDITION, "regular file");
    optest_end(&t);
}

/* --allow-path: nothing outside, by no op. */
static trn_err only_x(const trn_kctx *k, const char *path)
{
    (void)k;
    return strstr(path, "/x") ? TRN_OK : trn_errorf(TRN_PERMISSION_DENIED, "%s is not allowed", path);
}

static trn_err run_confined(optest *t, const char *op, const char *attrs, trn_tensor **in, int n)
{
    static trn_step_api api;
    optest_begin(t, op);
    api = *t->step.api;
    api.check_path = only_x;
    t->step.api = &api;
    optest_attrs(t, attrs);
    for (int i = 0; i < n; i++)
        optest_input(t, in[i]);
    TRN_TRY(optest_prepare(t));
    return optest_go(t);
}

static void confined(void **state)
{
    (void)state;
    save_one(in_dir("x"), "v", trn_tensor_i32(1));
    save_one(in_dir("y"), "v", trn_tensor_i32(1));
    const struct {
        const char *op, *attrs;
        trn_tensor *in[4];
    } cases[] = {
        {"SaveV2", "dtypes=[i32]", {str(in_dir("y")), STRS("v"), STRS(""), trn_tensor_i32(1)}},
        {"RestoreV2", "dtypes=[i32]", {str(in_dir("y")), STRS("v"), STRS("")}},
        {"MergeV2Checkpoints", "", {STRS(in_dir("y")), str(in_dir("x2"))}},
        {"MergeV2Checkpoints", "", {STRS(in_dir("x")), str(in_dir("y2"))}},
        {"Save", "T=[i32]", {str(in_dir("y")), STRS("v"), trn_tensor_i32(1)}},
        {"Restore", "dt=i32", {str(in_dir("y")), str("v")}},
        {"ReadFile", "", {str(in_dir("y.index"))}},
        {"WriteFile", "", {str(in_dir("y3")), str("v")}},
        {"MatchingFiles", "", {str(in_dir("*"))}},
        {"ImmutableConst", "dtype=u8, shape=[1], memory_region_name=/etc/hostname", {0}},
        {"Skipgram", "filename=/etc/hostname, batch_size=1, window_size=1, min_count=1, subsample=0", {0}},
    };
    for (size_t i = 0; i < TRN_COUNTOF(cases); i++) {
        optest t;
        trn_tensor *in[4];
        memcpy(in, cases[i].in, sizeof in);
        int n = 0;
        while (n < 4 && in[n])
            n++;
        fails(run_confined(&t, cases[i].op, cases[i].attrs, in, n), TRN_PERMISSION_DENIED, "not allowed");
        optest_end(&t);
    }
    assert_int_equal(count_files("y.index"), 1);
    optest t;
    ok(run_confined(&t, "RestoreV2", "dtypes=[i32]", (trn_tensor *[]){str(in_dir("x")), STRS("v"), STRS("")}, 3));
    optest_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums),
        cmocka_unit_test_teardown(tables, clean_dir),
        cmocka_unit_test_teardown(damaged_tables, clean_dir),
        cmocka_unit_test(slices),
        cmocka_unit_test_teardown(many_names, clean_dir),
        cmocka_unit_test_teardown(partitioned, clean_dir),
        cmocka_unit_test_teardown(failing_disk, clean_dir),
        cmocka_unit_test_teardown(killed, clean_dir),
        cmocka_unit_test_teardown(records, clean_dir),
        cmocka_unit_test(snappy),
        cmocka_unit_test(snapshots),
        cmocka_unit_test(malformed_elements),
        cmocka_unit_test_teardown(save_and_restore, clean_dir),
        cmocka_unit_test_teardown(whole_files, clean_dir),
        cmocka_unit_test_teardown(constants_in_files, clean_dir),
        cmocka_unit_test_teardown(confined, clean_dir),
    };
    if (!mkdtemp(dir))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir);
    return rc;
}
