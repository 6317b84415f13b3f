/* What decoding a JPEG costs, from its segments, as a decoder that takes all it can would find them. */
#ifndef GPUPIPE_COST_H
#define GPUPIPE_COST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int64_t channels; /* 0 for what is no JPEG: so are all then */
  int64_t height, width;
  int64_t kept;     /* blocks of 8 x 8 coefficients that are in memory at once, where not all is in one scan */
  int64_t work;     /* blocks that the scans go through; those of arithmetic coding count 64 times */
  int64_t scans;
} gp_cost;

/* kernels/costs.py has the same in Python. */
gp_cost gp_cost_of(const uint8_t *data, size_t size);

#ifdef __cplusplus
}
#endif
#endif
