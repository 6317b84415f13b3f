/* The entropy decoding of baseline JPEGs: two thirds of the time that libjpeg-turbo takes for a window. What lies outside
 * the window is passed over, several coefficients at a time, instead of being decoded. */
#ifndef GPUPIPE_HUFFMAN_H
#define GPUPIPE_HUFFMAN_H

#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

#define GP_CUT "the data ends before the image does"

typedef struct gp_huffman gp_huffman;

/* NULL where there is no memory. */
gp_huffman *gp_huffman_new(void);
void gp_huffman_free(gp_huffman *huffman);

/* Takes the place of libjpeg's decoder for an image whose decompression has just been started, with the data up to
 * `end`. Only the MCUs of columns `first` to `last` are needed. Returns 0, having done nothing, for an image of another
 * kind. Unlike libjpeg's it fails where the data is not as it should be, up to the end of the file. */
int gp_huffman_take_over(gp_huffman *huffman, j_decompress_ptr codec, const uint8_t *end, int first, int last);

/* Gives memory back that an unusually large image has taken. */
void gp_huffman_trim(gp_huffman *huffman);

/* Refuses an image that has another marker than the restarts among its data. */
__attribute__((noreturn)) void gp_huffman_foreign_marker(j_decompress_ptr codec, int marker);

/* What the user of this file provides: the decoder of a codec, and the way out, with a code of jpeg.h. */
gp_huffman *gp_huffman_of(j_decompress_ptr codec);
__attribute__((noreturn)) void gp_huffman_failed(j_decompress_ptr codec, int status, const char *message);

#endif
