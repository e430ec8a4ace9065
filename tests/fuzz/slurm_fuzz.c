/* What Slurm's programs print, and the names that workers give themselves: read or refused; what was read is fit to be an argument and to be shown. */
#include <stdlib.h>
#include <string.h>

#include "daemon/slurm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

static void check_id(const char *id)
{
    size_t n = strlen(id);
    must(n > 0 && n < SLURM_ID_MAX && strspn(id, "0123456789_") == n && id[0] != '_');
}

static void check_shown(const char *text, size_t size)
{
    must(memchr(text, 0, size) != NULL);
    for (; *text; text++)
        must((unsigned char)*text >= 0x20 && *text != 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *line = malloc(size ? size : 1), id[SLURM_ID_MAX], small[20], large[300];
    struct slurm_row row;
    uint32_t restarts;
    must(text && line);
    memcpy(text, data, size);
    text[size] = 0;
    memcpy(line, data, size); /* not ended by a zero */
    if (slurm_row_parse(line, size, &row) == 0) {
        check_id(row.id);
        check_shown(row.node, sizeof row.node);
        check_shown(row.reason, sizeof row.reason);
        must(*slurm_state_word(row.state) && row.status >= 0 && row.status <= 0xffff);
        for (int hung = 0; hung < 2; hung++)
            must(slurm_cause(row.state, row.status, BLACKBOX_UNKNOWN, hung) <= WORKER_HUNG);
    }
    if (slurm_submitted_parse(text, id) == 0)
        check_id(id);
    if (slurm_name_parse(text, id, &restarts) == 0)
        check_id(id);
    must(slurm_kill_wait_ms(text) <= 3600000);
    slurm_complaint("sbatch", text, small, sizeof small);
    check_shown(small, sizeof small);
    slurm_complaint("squeue", text, large, sizeof large);
    check_shown(large, sizeof large);
    free(line);
    free(text);
    return 0;
}
