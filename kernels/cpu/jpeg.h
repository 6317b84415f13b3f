/* A window of a JPEG, row by row, by libjpeg-turbo. Plain C: libjpeg reports errors with longjmp, which must not cross
 * C++ frames. Every function here catches what libjpeg throws below it. */
#ifndef GPUPIPE_JPEG_H
#define GPUPIPE_JPEG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why an image was refused. The same numbers stand in kernels/decode.py. */
enum {
  GP_OK = 0,
  GP_NOT_JPEG = 1,     /* it does not begin as a JPEG */
  GP_UNSUPPORTED = 2,  /* a JPEG of a kind that is left to others */
  GP_DAMAGED = 3,      /* libjpeg's error or warning, or data that ends early */
  GP_LIMIT = 4,        /* more pixels, memory or scans than allowed */
  GP_CHANGED = 5,      /* not of the expected size, or the window lies outside */
  GP_NO_MEMORY = 6
};

enum { GP_MESSAGE = 200 }; /* bytes of a message, its end included; libjpeg's JMSG_LENGTH_MAX is 200 too */

typedef struct {
  int64_t max_pixels; /* width * height of the whole image */
  int64_t max_memory; /* bytes that libjpeg may allocate for one image */
  int32_t max_scans;  /* of a progressive or multi-scan file */
} gp_limits;

typedef struct gp_jpeg gp_jpeg;

/* A decoder to be used for one image after another, on one thread at a time; NULL where there is no memory.
 * own_entropy: whether huffman.c decodes what it can; else libjpeg does all, to the same bits. */
gp_jpeg *gp_jpeg_new(int own_entropy);
void gp_jpeg_free(gp_jpeg *jpeg);

/* Reads the header. `data` must stay until gp_jpeg_end. */
int gp_jpeg_open(gp_jpeg *jpeg, const uint8_t *data, size_t size, const gp_limits *limits);
int gp_jpeg_height(const gp_jpeg *jpeg);
int gp_jpeg_width(const gp_jpeg *jpeg);

/* Starts at a window of the image after it was scaled by 1/denominator (1, 2, 4 or 8; sizes rounded up). */
int gp_jpeg_begin(gp_jpeg *jpeg, int denominator, int top, int left, int height, int width);
/* Bytes that a row buffer needs, and where the window's first pixel lies in it. */
size_t gp_jpeg_row_bytes(const gp_jpeg *jpeg);
size_t gp_jpeg_row_offset(const gp_jpeg *jpeg);
/* The next `count` rows of 4-byte pixels: red, green, blue, undefined. */
int gp_jpeg_rows(gp_jpeg *jpeg, uint8_t *rows, size_t stride, int count);
/* Looks through what was not decoded for what other decoders would refuse, and forgets the image. */
int gp_jpeg_end(gp_jpeg *jpeg);

/* Gives memory back that an unusually large image has taken; between images. */
void gp_jpeg_trim(gp_jpeg *jpeg);

/* Why the last call did not return GP_OK. */
const char *gp_jpeg_message(const gp_jpeg *jpeg);
/* The version of libjpeg-turbo that this was compiled against, such as 2001005. */
int gp_jpeg_version(void);

#ifdef __cplusplus
}
#endif
#endif
