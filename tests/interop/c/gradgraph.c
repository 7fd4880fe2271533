/* gradgraph [--colocate] [--zeros] [--stop=a:0,b:0] [--grad-ys=a:0,b:0] IN.pb YS XS OUT.pb
 *
 * Reads a GraphDef, adds the gradients of the tensors YS ("loss:0,…") with respect to XS, writes the graph and says for each x where its gradient is:
 *     none                 y does not depend on it
 *     dense NAME
 *     slices VALUES INDICES SHAPE
 */
#include <trainera/trainera.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 4096 };

static void *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(2);
    }
    char *p = NULL;
    size_t cap = 0;
    *n = 0;
    for (size_t got = 1; got; *n += got) {
        if (cap - *n < 65536)
            p = realloc(p, cap = cap * 2 + 65536);
        got = fread(p + *n, 1, cap - *n, f);
    }
    fclose(f);
    return p;
}

static int find_all(trn_out *out, int max, trn_builder *b, char *names)
{
    int n = 0;
    for (char *s = strtok(names, ","); s && n < max; s = strtok(NULL, ","))
        out[n++] = trn_find(b, s);
    return n;
}

int main(int argc, char **argv)
{
    trn_gradients_opts o = {0};
    char *stop = NULL, *grad_ys = NULL;
    int i = 1;
    for (; i < argc && !strncmp(argv[i], "--", 2); i++) {
        if (!strcmp(argv[i], "--colocate"))
            o.colocate = true;
        else if (!strcmp(argv[i], "--zeros"))
            o.zeros = true;
        else if (!strncmp(argv[i], "--stop=", 7))
            stop = argv[i] + 7;
        else if (!strncmp(argv[i], "--grad-ys=", 10))
            grad_ys = argv[i] + 10;
    }
    if (argc - i != 4) {
        fprintf(stderr, "usage: gradgraph [--colocate] [--zeros] [--stop=a:0] [--grad-ys=a:0] IN.pb YS XS OUT.pb\n");
        return 2;
    }
    size_t n;
    void *bytes = slurp(argv[i], &n);
    trn_builder *b = trn_builder_new();
    trn_builder_import(b, bytes, n, NULL);
    free(bytes);
    static trn_out ys[MANY], xs[MANY], stops[MANY];
    static trn_grad g[MANY];
    int n_ys = find_all(ys, MANY, b, argv[i + 1]), n_xs = find_all(xs, MANY, b, argv[i + 2]);
    if (stop) {
        o.n_stop = find_all(stops, MANY, b, stop);
        o.stop = stops;
    }
    static trn_out dys[MANY];
    if (grad_ys) {
        find_all(dys, MANY, b, grad_ys);
        o.grad_ys = dys;
    }
    trn_gradients(g, b, ys, n_ys, xs, n_xs, &o);
    trn_err err = trn_builder_check(b);
    if (!err)
        err = trn_builder_export(&bytes, &n, b);
    if (err) {
        fprintf(stderr, "%s: %s\n", trn_code_name(trn_err_code(err)), trn_err_msg(err));
        return 1;
    }
    FILE *f = fopen(argv[i + 3], "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) {
        perror(argv[i + 3]);
        return 2;
    }
    for (int k = 0; k < n_xs; k++) {
        if (!trn_grad_is(g[k]))
            puts("none");
        else if (trn_grad_is_sparse(g[k]))
            printf("slices %s %s %s\n", trn_out_name(b, g[k].values), trn_out_name(b, g[k].indices), trn_out_name(b, g[k].dense_shape));
        else
            printf("dense %s\n", trn_out_name(b, g[k].values));
    }
    free(bytes);
    trn_builder_free(b);
    return 0;
}
