/* Summaries: what a run shows in TensorBoard.
 *
 *     trn_summary_scalar(b, "loss", loss);
 *     trn_summary_histogram(b, "weights", w->value);
 *     trn_out all = trn_summary_merge_all(b);               // fetch it every now and then
 *     ...
 *     trn_event_writer *ev;
 *     err = trn_event_writer_open(&ev, "run", NULL);
 *     trn_event_writer_add_graph(ev, b);
 *     trn_event_writer_add_summary_tensor(ev, fetched, step);
 *     err = trn_event_writer_close(ev);
 */
#ifndef TRAINERA_SUMMARY_H
#define TRAINERA_SUMMARY_H

#include <trainera/build.h>
#include <trainera/session.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- in the graph: string scalars with a serialized Summary, collected in "summaries" -------------------------------- */

/* The tag is the node's name within its scopes, as in tf.compat.v1.summary. */
TRN_API trn_out trn_summary_scalar(trn_builder *b, const char *tag, trn_out value);
TRN_API trn_out trn_summary_histogram(trn_builder *b, const char *tag, trn_out values);
TRN_API trn_out trn_summary_image(trn_builder *b, const char *tag, trn_out images, int max_images); /* [n,h,w,1|3|4], uint8 or float; 0: 3 */
TRN_API trn_out trn_summary_text(trn_builder *b, const char *tag, trn_out strings);
TRN_API trn_out trn_summary_merge(trn_builder *b, const trn_out *summaries, int n);
TRN_API trn_out trn_summary_merge_all(trn_builder *b); /* all that were collected; TRN_NONE when there are none */

/* ---- event files ----------------------------------------------------------------------------------------------------- */

/* Adding puts the event in a queue and returns; a thread of its own writes. When the queue is full, adding waits. The first error of writing stays and
 * comes from flush and close. Any thread may add. */
typedef struct trn_event_writer trn_event_writer;
typedef struct trn_event_writer_opts {
    const char *suffix;  /* behind the file's name; NULL: none */
    int queue;           /* events; 0: 64 */
} trn_event_writer_opts;
/* dir/events.out.tfevents.<seconds>.<host>.<pid>.<number><suffix>; makes the folder. */
TRN_API trn_err trn_event_writer_open(trn_event_writer **out, const char *dir, const trn_event_writer_opts *opts) TRN_MUST_USE;
TRN_API trn_err trn_event_writer_flush(trn_event_writer *w) TRN_MUST_USE; /* everything added before is in the file */
TRN_API trn_err trn_event_writer_close(TRN_OWN trn_event_writer *w) TRN_MUST_USE; /* flushes; NULL is fine */
TRN_API const char *trn_event_writer_path(const trn_event_writer *w);

/* A serialized Summary, as summary ops give it. */
TRN_API void trn_event_writer_add_summary(trn_event_writer *w, const void *summary, size_t n, int64_t step);
TRN_API void trn_event_writer_add_summary_tensor(trn_event_writer *w, const trn_tensor *fetched, int64_t step);
TRN_API void trn_event_writer_add_scalar(trn_event_writer *w, const char *tag, float value, int64_t step);
TRN_API void trn_event_writer_add_histogram(trn_event_writer *w, const char *tag, const trn_tensor *values, int64_t step); /* any real dtype; what is not finite is left out */
/* 8-bit pixels, rows from the top; channels 1 (grey), 3 (RGB) or 4 (RGBA). Stored as PNG. */
TRN_API void trn_event_writer_add_image(trn_event_writer *w, const char *tag, const uint8_t *pixels, int width, int height, int channels, int64_t step);
TRN_API void trn_event_writer_add_text(trn_event_writer *w, const char *tag, const char *text, int64_t step);
TRN_API void trn_event_writer_add_graph(trn_event_writer *w, const trn_builder *b);
TRN_API void trn_event_writer_add_graph_def(trn_event_writer *w, const void *graph_def, size_t n);
TRN_API void trn_event_writer_add_run_metadata(trn_event_writer *w, const void *run_metadata, size_t n, const char *tag, int64_t step);
typedef enum trn_session_status { TRN_SESSION_START = 1, TRN_SESSION_STOP = 2, TRN_SESSION_CHECKPOINT = 3 } trn_session_status;
TRN_API void trn_event_writer_add_session_log(trn_event_writer *w, trn_session_status status, const char *checkpoint_path, const char *msg, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
