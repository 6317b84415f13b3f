/* The segments of a JPEG, walked strictly: which files every decoder understands in the same way. */
#ifndef GPUPIPE_WALK_H
#define GPUPIPE_WALK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int32_t height, width; /* as stored; 0 where the file is odd */
  int32_t orientation;   /* of EXIF, 1 to 8; 1 where there is none; 0 where decoders may read it differently */
} gp_header;

/* NULL for a plain file: 8 bits, Huffman codes, baseline, extended or progressive, grey or three components, each
 * segment filled to its end with what ITU T.81, annex B, allows there, all that a scan refers to defined before it, and no
 * marker among what is coded but restarts in their turn. Else why it is odd, which need not be damage. What is coded is
 * not decoded. */
const char *gp_walk(const uint8_t *data, size_t size, int max_scans, gp_header *header);

#ifdef __cplusplus
}
#endif
#endif
