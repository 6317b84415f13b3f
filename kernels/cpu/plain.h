/* The size of a JPEG as nearly all are written, which needs no look by Pillow. */
#ifndef GPUPIPE_PLAIN_H
#define GPUPIPE_PLAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* height, width: as stored, of a JPEG of Huffman codes and 8 bits with 1, 3 or 4 components and no more than so many
 * pixels, that has no EXIF and no further images, and a marker of its end among its last bytes. Returns 0, and writes
 * nothing, for any other file: it may have an orientation, or be cut. */
int gp_plain(const uint8_t *data, size_t size, int64_t most_pixels, int32_t *height, int32_t *width);

#ifdef __cplusplus
}
#endif
#endif
