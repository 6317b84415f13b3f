/* What Python calls, by ctypes. The structures are mirrored in kernels/native.py; raise GP_ABI with each change, and with
   each new function. */
#pragma once

#include <stdint.h>

#include "cost.h"
#include "jpeg.h"
#include "plain.h"
#include "walk.h"

enum { GP_ABI = 23 };

#pragma GCC visibility push(default)
extern "C" {

/* One crop of every image. */
struct gp_view {
  int32_t out_height, out_width; /* of each output, where outputs is null */
  const int32_t* windows;      /* (count, 4) top, left, height, width, upright */
  const int32_t* resized;      /* (count, 2) height, width */
  const int32_t* anchors;      /* (count, 2) top, left */
  const uint8_t* flips;        /* (count,) */
  const uint8_t* bicubic;      /* (count,) else bilinear */
  uint8_t* out;                /* (count, out_height, out_width, 3), or rows of `stride` bytes that begin with an output */
  const uint8_t* fill;         /* R, G, B of what lies outside of image or resized window; null: nothing does */
  int32_t padding;             /* where out of resized window: 0 fill, 1 edge, 2 reflect, 3 symmetric */
  const int32_t* outputs;      /* (count, 2) height, width of each output; null: all alike */
  int64_t stride;              /* of out, with outputs */
};

struct gp_images {
  int32_t count;
  int32_t view_count;
  int32_t fast;                /* whether libjpeg may scale */
  int32_t threads;
  const char* variant;         /* name of the passes, or null for the best */
  const uint8_t* const* data;  /* encoded bytes of each image, or its window's pixels */
  const int64_t* bytes;        /* (count,) */
  const int32_t* sizes;        /* (count, 2) height, width as stored, 0 if unknown */
  const uint8_t* orientations; /* (count,) of EXIF */
  const gp_view* views;        /* (view_count,) */
  gp_limits limits;
  int32_t* codes;              /* (count,) written */
  char* messages;              /* (count, GP_MESSAGE) written where a code is not GP_OK */
};

struct gp_finish {
  int32_t count, height, width;
  int32_t dtype;         /* 0 float32, 1 float16, 2 bfloat16, 3 uint8 */
  int32_t channels_last;
  int32_t threads;
  const char* variant;   /* name, or null for the best */
  float offset[3], scale[3];
  const void* table;     /* (3, 256) of dtype: what each value becomes; not read for uint8 */
  const float* exact;    /* (3, 256) the same in float32: for what is erased and mixed */
  const uint8_t* in;     /* (count, height, width, 3) */
  void* out;
  const int32_t* erase_boxes;  /* (count, 4) top, left, height, width, inside the image; null for none */
  const float* erase_value;    /* (3,); null for noise */
  const uint32_t* erase_keys;  /* (count, 2), for noise */
  const int32_t* partners;     /* (count,) rows; null for none */
  const float* weights;        /* (count,) */
  const int32_t* mix_boxes;    /* (count, 4) */
  const uint8_t* const* rows;  /* where `sizes` is not null: of each image its own pixels in the place of `in`; not mixed */
  const int32_t* sizes;        /* (count, 2) their heights and widths, at most `height`, `width` */
  const void* around;          /* what surrounds them in `out`, of dtype */
};

struct gp_augment {
  int32_t count, height, width;
  int32_t steps, values; /* operations of each image, and numbers of each operation */
  int32_t threads;
  const char* variant;   /* name, or null for the best */
  const int32_t* ops;    /* (count, steps) */
  const float* numbers;  /* (count, steps, values) */
  const float* fill;     /* R, G, B, or null for black */
  const uint8_t* in;     /* (count, height, width, 3) */
  uint8_t* out;          /* of the same shape; may be `in` */
};

struct gp_walks {
  int32_t count, threads;
  int32_t max_scans;          /* of one file */
  const uint8_t* const* data; /* encoded bytes of each file */
  const int64_t* bytes;       /* (count,) */
  gp_header* headers;         /* (count,) written */
  const char** odd;           /* (count,) written: null for a plain JPEG, else why it is none */
};

int32_t gp_abi(void);
int32_t gp_libjpeg_version(void);
/* A Feistel network on the digits (x / b, x % b) of each number. */
struct gp_feistel {
  int64_t count;
  uint64_t* numbers;           /* (count,) below a * b, in place */
  const uint64_t* a;           /* (count,) or one for all, from 1 to 2^31 */
  const uint64_t* b;           /* likewise */
  const uint64_t* keys;        /* (rounds, count) or (rounds, 1) */
  int32_t rounds;
  int32_t each_domain;         /* whether each number has an a and b of its own */
  int32_t each_key;
  int32_t back;                /* the inverse */
  int32_t portable;            /* without what only some CPUs have */
};

/* Of an order that has blocks in a line and shuffles within its regions: the samples at places, or the way back. */
struct gp_line {
  int64_t count;
  const int64_t* numbers;       /* (count,) places, or samples */
  const int64_t* begins;        /* (block_count,) of the blocks in the line, or in the dataset, ascending from 0 */
  const int64_t* moves;         /* (block_count,) from a place to its sample, or back */
  const int64_t* region_begins; /* (region_count + 1,) the first place of each region, and the end of the last */
  const int64_t* a;             /* (region_count,) the values of a region's digits, from 1 to 2^31 */
  const int64_t* b;             /* likewise */
  const uint64_t* keys;         /* (rounds,) which a region's number makes its own */
  int64_t* regions;             /* (count,) written */
  int64_t* found;               /* (count,) written: samples, or places within the regions */
  int64_t block_count, region_count;
  int32_t rounds;
  int32_t back;
  int32_t portable;             /* without what only some CPUs have */
};

/* What a cache holds, and a step of what is read there: the arrays have a row for each of different samples. */
struct gp_held;
struct gp_held_step {
  gp_held* held;
  int64_t now, busy, count;
  const int64_t *indices, *sizes, *times;
  uint8_t *hits, *keep;
  int64_t named; /* written: how many samples the call has found, for gp_held_named */
};

/* Name of the best passes on this CPU. */
const char* gp_best_variant(void);
/* Whether this CPU has the passes of that name. */
int32_t gp_has_variant(const char* name);
/* All return 0, or -1 for an unknown variant. */
int32_t gp_decode_crop_resize(const gp_images* images);
int32_t gp_resize(const gp_images* images);
int32_t gp_finish_batch(const gp_finish* batch);
/* -2 where memory was refused; images are unfinished then. */
int32_t gp_augment_batch(const gp_augment* batch);
/* Walks the segments of each file, see walk.h. */
void gp_walk_files(const gp_walks* files);
/* costs: (count,) written, see cost.h. */
void gp_costs(int64_t count, const uint8_t* const* data, const int64_t* bytes, gp_cost* costs);
/* sizes: (count, 2), height and width written where gp_plain finds them, see plain.h. */
void gp_plain_files(int64_t count, const uint8_t* const* data, const int64_t* bytes, int64_t most_pixels,
                    int32_t* sizes);
/* Rows of a PNG image with a byte a pixel, a byte for the filter before each, to pixels (PNG 1.2, 6). out: (height + 1,
   width), of which the first row is zeros and stays. Returns 0, or -1 for an unknown filter. */
int32_t gp_png_unfilter(int64_t height, int64_t width, const uint8_t* filtered, uint8_t* out);
void gp_feistel_numbers(const gp_feistel* all);
void gp_line_numbers(const gp_line* line);
/* Philox4x32-10 of `count` counters, in place. words: (4, count), below 2**32. */
void gp_philox(int64_t count, uint64_t* words, uint32_t key0, uint32_t key1);
/* Null where memory was refused. */
gp_held* gp_held_new(int64_t capacity);
void gp_held_free(gp_held* held);
/* The next four return 0, or -2 where memory was refused. Writes hits, of what is needed now; finds the others that
   were filed for now. */
int32_t gp_held_hits(gp_held_step* step);
/* Reads hits, writes keep, files these; finds what goes. */
int32_t gp_held_keep(gp_held_step* step);
/* Files all rows. */
int32_t gp_held_file(gp_held_step* step);
/* Finds all that are held. */
int32_t gp_held_all(gp_held_step* step);
/* The samples that the last call found, (named,). */
void gp_held_named(const gp_held* held, int64_t* out);
/* Memory that it takes. */
int64_t gp_held_bytes(const gp_held* held);
}
#pragma GCC visibility pop
