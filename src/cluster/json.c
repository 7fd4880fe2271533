/* Cluster specs in JSON: on the command line and in TF_CONFIG. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

#include "cluster/cluster.h"

enum { MAX_TEXT = 16 << 20 };

static const char *kind(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

static trn_err load(json_t **out, const char *what, const char *text, size_t n)
{
    if (n > MAX_TEXT)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s: %zu bytes are too much for a cluster spec", what, n);
    json_error_t e;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        return trn_errorf(TRN_INVALID_ARGUMENT, "%s is not valid JSON: line %d, column %d: %s", what, e.line, e.column,
                          e.text);
    if (!json_is_object(root)) {
        trn_err err = trn_errorf(TRN_INVALID_ARGUMENT, "%s is %s; an object is expected", what, kind(root));
        json_decref(root);
        return err;
    }
    *out = root;
    return TRN_OK;
}

/* A whole number, as number or as text ("0": people and schedulers write both). */
static bool whole(const char *s, int64_t *out)
{
    char *end;
    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    *out = strtoll(s, &end, 10);
    return !*end && !errno;
}

static trn_err add_task(trn_cluster_builder *b, const char *job, int64_t index, const json_t *address)
{
    if (!json_is_string(address))
        return trn_errorf(TRN_INVALID_ARGUMENT, "job '%.80s', task %lld: the address is %s; \"host:port\" is expected",
                          job, (long long)index, kind(address));
    return trn_cluster_builder_add(b, job, index, json_string_value(address));
}

/* {"ps": ["h:p", …], "worker": {"0": "h:p", …}} */
static trn_err add_jobs(trn_cluster_builder *b, json_t *cluster)
{
    const char *job, *key;
    json_t *tasks, *address;
    json_object_foreach(cluster, job, tasks)
    {
        if (json_is_array(tasks)) {
            size_t i;
            json_array_foreach(tasks, i, address) TRN_TRY(add_task(b, job, (int64_t)i, address));
        } else if (json_is_object(tasks)) {
            json_object_foreach(tasks, key, address)
            {
                int64_t index;
                if (!whole(key, &index))
                    return trn_errorf(TRN_INVALID_ARGUMENT, "job '%.80s': '%.80s' is not a task's number", job, key);
                TRN_TRY(add_task(b, job, index, address));
            }
        } else {
            return trn_errorf(
                TRN_INVALID_ARGUMENT,
                "job '%.80s' is %s; a list of addresses, or an object from task number to address, is expected", job,
                kind(tasks));
        }
    }
    return TRN_OK;
}

trn_err trn_cluster_from_json(trn_cluster **out, const char *text, size_t n)
{
    json_t *root;
    TRN_TRY(load(&root, "the cluster spec", text, n));
    trn_cluster_builder b = {0};
    trn_err err = add_jobs(&b, root);
    json_decref(root);
    if (err) {
        trn_cluster_builder_fini(&b);
        return err;
    }
    return trn_cluster_builder_finish(out, &b);
}

static trn_err tf_config(trn_cluster_builder *b, json_t *root)
{
    json_t *cluster = json_object_get(root, "cluster"), *task = json_object_get(root, "task");
    if (!cluster)
        return trn_errorf(TRN_INVALID_ARGUMENT, "there is no \"cluster\" in it");
    if (!json_is_object(cluster))
        return trn_errorf(TRN_INVALID_ARGUMENT, "\"cluster\" is %s; an object from job to addresses is expected",
                          kind(cluster));
    if (!task)
        return trn_errorf(TRN_INVALID_ARGUMENT, "there is no \"task\" in it, so it does not say which task this is");
    if (!json_is_object(task))
        return trn_errorf(TRN_INVALID_ARGUMENT, "\"task\" is %s; {\"type\": …, \"index\": …} is expected", kind(task));

    json_t *type = json_object_get(task, "type"), *index = json_object_get(task, "index");
    if (!json_is_string(type))
        return trn_errorf(TRN_INVALID_ARGUMENT, "\"task\" has %s \"type\"; the name of a job is expected",
                          type ? "a bad" : "no");
    int64_t number = 0;
    if (!index)
        return trn_errorf(TRN_INVALID_ARGUMENT, "\"task\" has no \"index\"");
    if (json_is_integer(index))
        number = json_integer_value(index);
    else if (!json_is_string(index) || !whole(json_string_value(index), &number))
        return trn_errorf(TRN_INVALID_ARGUMENT, "\"task\" has a bad \"index\"; a number is expected");

    TRN_TRY(add_jobs(b, cluster));
    const char *job = json_string_value(type);
    if (strcmp(job, "evaluator") == 0 && !json_object_get(cluster, job))
        return trn_errorf(TRN_INVALID_ARGUMENT,
                          "the evaluator is no member of the cluster: it works alone and has no server to start");
    return trn_cluster_builder_own(b, job, number);
}

trn_err trn_cluster_from_tf_config(trn_cluster **out, const char *text, size_t n)
{
    json_t *root;
    TRN_TRY(load(&root, "TF_CONFIG", text, n));
    trn_cluster_builder b = {0};
    trn_err err = tf_config(&b, root);
    json_decref(root);
    if (err)
        trn_cluster_builder_fini(&b);
    else
        err = trn_cluster_builder_finish(out, &b);
    return err ? trn_err_wrap(err, "TF_CONFIG") : TRN_OK;
}
