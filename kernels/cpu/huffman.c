#include "huffman.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "jpeg.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum {
  LOOK_BITS = 10, /* codes of up to so many bits are found in one step; with 9 or 11 it takes 2 to 4 % longer */
  LONGEST = 16,   /* bits of a code */
  END_OF_BLOCK = 64,
  MOST = 31,      /* bits of a symbol: a code and the number after it */
  /* Beyond the end of the data an MCU may still be read: 10 blocks of 64 symbols. */
  PADDING = D_MAX_BLOCKS_IN_MCU * 64 * MOST / 8 + 16,
  KEPT = 1 << 22  /* bytes of memory for data that stay for the next image */
};

/* The head of a structure that is private to libjpeg, the same in all its versions since 6b (jpegint.h). */
struct entropy_decoder {
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
  boolean insufficient_data;
};

/* Where the n-th coefficient of a block lies (ITU-T T.81, figure 5). */
static const uint8_t NATURAL[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* What the next LOOK_BITS bits begin with, in one number; 0 for a longer code or none.
 * total:   bits of the code and of the number that follows it; lowest, where a shift finds it without a mask
 * code:    bits of the code
 * keep:    63 less the bits of the number
 * advance: coefficients to go on by, END_OF_BLOCK for that */
typedef uint32_t symbol;
enum { CODE_AT = 6, KEEP_AT = 12, ADVANCE_AT = 18 };

static inline symbol pack(int code, int size, int advance) {
  return (symbol)((code + size) | code << CODE_AT | (63 - size) << KEEP_AT | advance << ADVANCE_AT);
}
static inline int total_bits(symbol from) { return from & 63; }
static inline int code_bits(symbol from) { return from >> CODE_AT & 63; }
static inline int keep_bits(symbol from) { return from >> KEEP_AT & 63; }
static inline int advance_of(symbol from) { return (int)(from >> ADVANCE_AT); }

/* What the next LOOK_BITS bits pass over: in the low byte the bits of all symbols, in the high one their coefficients,
 * END_OF_BLOCK more where that is the last of them, UNKNOWN where not even one symbol is known. */
typedef uint16_t leap;
enum { UNKNOWN = 127, LEAPS = 3, LEAP_MOST = 56 / LEAPS };

static inline unsigned leap_bits(leap from) { return from & 0xFF; }
static inline unsigned leap_advance(leap from) { return from >> 8; }

/* The coefficient that the next LOOK_BITS bits begin with, and the symbol after it where they hold that too.
 * total:  bits of both
 * first:  coefficients to go on by to the first one; UNKNOWN where the bits don't hold it, END_OF_BLOCK for that
 * both:   to the second one; no more than to the first where there is none
 * value:  the first one's
 * second: the other's, or the first one's again */
typedef uint64_t pair;
enum { FIRST_AT = 8, BOTH_AT = 16, VALUE_AT = 32, SECOND_AT = 48, PAIRS = 56 / LOOK_BITS };

static inline unsigned pair_bits(pair from) { return from & 0xFF; }
static inline unsigned first_of(pair from) { return from >> FIRST_AT & 0xFF; }
static inline unsigned both_of(pair from) { return from >> BOTH_AT & 0xFF; }

typedef struct {
  UINT8 lengths[17], values[256]; /* the JPEG's table from which the rest was made */
  int made, ac;
  int32_t limit[LONGEST + 2]; /* by length: above the largest code, in LONGEST bits; of LONGEST + 1: above all */
  int32_t offset[LONGEST + 1];
  symbol fast[1 << LOOK_BITS];
  leap leaps[1 << LOOK_BITS];
  pair pairs[1 << LOOK_BITS];
} table;

typedef struct {
  const uint8_t *at;
  uint64_t buffer; /* the next bits, from the top */
  unsigned count;  /* bits in it */
} reader;

/* A block of an MCU. */
typedef struct {
  const table *dc_table, *ac_table;
  int *dc;   /* of the block before */
  int whole; /* more than its DC is needed */
} place;

struct gp_huffman {
  reader in;
  int blocks;
  place places[D_MAX_BLOCKS_IN_MCU];
  int first, last, column;
  unsigned restart_in;       /* MCUs */
  int dc[MAX_COMPS_IN_SCAN]; /* of the block before */
  uint8_t *data;             /* the scan without its stuffing and markers, then PADDING zeros */
  size_t data_size, data_space;
  size_t *starts; /* in data, of the parts between restart markers, and after the last one the size */
  size_t starts_space;
  int part, parts;
  table tables[2][NUM_HUFF_TBLS];
};

gp_huffman *gp_huffman_new(void) { return (gp_huffman *)calloc(1, sizeof(gp_huffman)); }

void gp_huffman_free(gp_huffman *huffman) {
  if (huffman == NULL) return;
  free(huffman->data);
  free(huffman->starts);
  free(huffman);
}

void gp_huffman_trim(gp_huffman *huffman) {
  if (huffman->data_space > KEPT) {
    free(huffman->data);
    huffman->data = NULL;
    huffman->data_space = 0;
  }
}

static const char NO_CODE[] = "a code that the image's Huffman table does not have";

__attribute__((noreturn)) static void damaged(j_decompress_ptr codec, const char *message) {
  gp_huffman_failed(codec, GP_DAMAGED, message);
}

/* The scan. */

static void reserve(j_decompress_ptr codec, void **memory, size_t *space, size_t count, size_t size) {
  const size_t roomy = count + count / 4;
  void *grown;
  if (count <= *space) return;
  grown = realloc(*memory, roomy * size);
  if (grown == NULL) gp_huffman_failed(codec, GP_NO_MEMORY, "no memory for the image's data");
  *memory = grown;
  *space = roomy;
}

static void start_part(j_decompress_ptr codec, gp_huffman *huffman) {
  const size_t count = (size_t)huffman->parts + 1;
  reserve(codec, (void **)&huffman->starts, &huffman->starts_space, count, sizeof *huffman->starts);
  huffman->starts[huffman->parts] = huffman->data_size;
}

void gp_huffman_foreign_marker(j_decompress_ptr codec, int marker) {
  char text[GP_MESSAGE];
  snprintf(text, sizeof text, "marker 0x%02x stands within the image data", (unsigned)marker);
  damaged(codec, text);
}

/* Copies the scan without what is stuffed into it: reading bits is then one load, without a look at the bytes. A decoder
 * of the whole image refuses it when it is cut short, and may when there is another marker than the restarts. */
static void unstuff(j_decompress_ptr codec, gp_huffman *huffman, const uint8_t *at, const uint8_t *end) {
  uint8_t *to;
  huffman->data_size = 0;
  huffman->parts = 0;
  reserve(codec, (void **)&huffman->data, &huffman->data_space, (size_t)(end - at) + PADDING, 1);
  start_part(codec, huffman);
  to = huffman->data;
  for (;;) {
    const uint8_t *marker = end - at < 2 ? NULL : (const uint8_t *)memchr(at, 0xFF, (size_t)(end - at) - 1);
    if (marker == NULL) damaged(codec, GP_CUT);
    memcpy(to, at, (size_t)(marker - at));
    to += marker - at;
    at = marker + 1;
    while (*at == 0xFF && at + 1 < end) at++; /* it may be repeated before a marker */
    if (*at == 0 && at == marker + 1) {
      *to++ = 0xFF;
    } else if (*at == 0xD9) {
      break;
    } else if (codec->restart_interval != 0 && *at == 0xD0 + (huffman->parts & 7)) {
      huffman->parts++;
      huffman->data_size = (size_t)(to - huffman->data);
      start_part(codec, huffman);
    } else {
      gp_huffman_foreign_marker(codec, *at);
    }
    at++;
  }
  memset(to, 0, PADDING);
  huffman->parts++;
  huffman->data_size = (size_t)(to - huffman->data);
  start_part(codec, huffman);
}

/* Reading bits. */

static inline uint64_t big_endian(const uint8_t *at) {
  uint64_t bytes;
  memcpy(&bytes, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  bytes = __builtin_bswap64(bytes);
#endif
  return bytes;
}

/* To 56 bits at least, without a branch (F. Giesen, "Reading bits in far too many ways", part 2, variant 4). */
static inline void refill(reader *in) {
  in->buffer |= big_endian(in->at) >> in->count;
  in->at += (63 - in->count) >> 3;
  in->count |= 56;
}

static inline void consume(reader *in, int bits) {
  in->buffer <<= bits;
  in->count -= (unsigned)bits;
}

static inline int top(const reader *in, int bits) { return (int)(in->buffer >> (64 - bits)); }

/* The number in the bits after the code (ITU-T T.81, figure F.12), without a branch: negative ones, which begin with a
 * 0, have all their bits inverted. */
static inline int number(const reader *in, symbol from) {
  const uint64_t after = in->buffer << code_bits(from);
  const uint64_t invert = (uint64_t)((int64_t)~after >> 63);
  const uint64_t size = (after ^ invert) >> 1 >> keep_bits(from); /* in two steps, for numbers of no bits */
  return (int)((size ^ invert) - invert);
}

/* Tables. */

/* The value of the code that 16 bits begin with, its length in *length; -1 if there is none. */
static int look_up(const table *made, int32_t bits, int *length) {
  int n = 1;
  while (n <= LONGEST && bits >= made->limit[n]) n++;
  *length = n;
  return n > LONGEST ? -1 : made->values[((bits >> (LONGEST - n)) + made->offset[n]) & 0xFF];
}

static void make_codes(table *made) {
  int32_t code = 0;
  int value = 0;
  for (int n = 1; n <= LONGEST; n++) {
    made->offset[n] = value - code;
    code += made->lengths[n];
    value += made->lengths[n];
    made->limit[n] = code << (LONGEST - n);
    code <<= 1;
  }
}

static symbol symbol_of(const table *made, int value, int length) {
  const int size = value & 15, advance = (value >> 4) + 1;
  if (!made->ac) return pack(length, size, 0);
  return pack(length, size, size == 0 && advance != 16 ? END_OF_BLOCK : advance);
}

static symbol long_symbol(const table *made, int32_t bits) {
  int length;
  const int value = look_up(made, bits, &length);
  return value < 0 ? 0 : symbol_of(made, value, length);
}

static void make_fast(table *made) {
  int at = 0, value = 0;
  for (int n = 1; n <= LOOK_BITS; n++) {
    for (int end = value + made->lengths[n]; value < end; value++) {
      const symbol one = symbol_of(made, made->values[value & 0xFF], n);
      for (int i = 0; i < 1 << (LOOK_BITS - n) && at < 1 << LOOK_BITS; i++) made->fast[at++] = one;
    }
  }
  while (at < 1 << LOOK_BITS) made->fast[at++] = 0;
}

/* What the bits of `index` begin with. */
static pair single(symbol from, int index) {
  const int size = 63 - keep_bits(from), total = total_bits(from);
  int number;
  if (from == 0 || total > LOOK_BITS) return (pair)UNKNOWN << FIRST_AT | (pair)UNKNOWN << BOTH_AT | 0xFF;
  number = index >> (LOOK_BITS - total) & ((1 << size) - 1);
  if (number < 1 << size >> 1) number -= (1 << size) - 1;
  return (pair)total | (pair)advance_of(from) << FIRST_AT | (pair)advance_of(from) << BOTH_AT |
         (pair)(uint16_t)number << VALUE_AT | (pair)(uint16_t)number << SECOND_AT;
}

static pair join_pair(pair one, pair next) {
  const pair mask = ~(pair)0 >> (64 - SECOND_AT);
  return ((one & mask) + pair_bits(next) + ((pair)both_of(next) << BOTH_AT)) | next >> SECOND_AT << SECOND_AT;
}

static void make_pairs(table *made) {
  pair singles[1 << LOOK_BITS];
  for (int at = 0; at < 1 << LOOK_BITS;) {
    const pair one = single(made->fast[at], at);
    const int same = pair_bits(one) > LOOK_BITS ? 1 : 1 << (LOOK_BITS - pair_bits(one));
    for (int i = 0; i < same; i++) singles[at++] = one;
  }
  for (int at = 0; at < 1 << LOOK_BITS;) {
    const pair one = singles[at];
    const unsigned left = LOOK_BITS - pair_bits(one);
    if (first_of(one) >= END_OF_BLOCK || left == 0) {
      made->pairs[at++] = one;
      continue;
    }
    for (int i = 0; i < 1 << left; i++) {
      const pair next = singles[i << pair_bits(one)];
      made->pairs[at++] = pair_bits(next) <= left ? join_pair(one, next) : one;
    }
  }
}

static leap join_leaps(leap one, leap next) {
  const unsigned advance = leap_advance(one) + (leap_advance(next) & 63);
  return advance < 64 && leap_bits(one) + leap_bits(next) <= LEAP_MOST ? (leap)(one + next) : one;
}

/* As many symbols as are known; the number after the last one may reach beyond the bits. First from 1 bit, then from
 * each number of bits by what fewer of them tell. */
static void make_leaps(table *made) {
  leap known[2 << LOOK_BITS]; /* from n bits: 1 << n | bits */
  known[1] = 0;
  for (int n = 1; n <= LOOK_BITS; n++) {
    leap *to = &known[1 << n];
    for (int at = 0; at < 1 << n;) {
      const symbol first = made->fast[at << (LOOK_BITS - n)];
      const int total = total_bits(first), ends = advance_of(first) == END_OF_BLOCK;
      const int left = n > total && !ends ? n - total : 0;
      const leap one = (leap)(total | advance_of(first) << 8);
      if (first == 0 || code_bits(first) > n || total > LEAP_MOST) {
        to[at++] = 0;
      } else if (left == 0) {
        to[at++] = one;
      } else {
        for (int i = 0; i < 1 << left; i++) to[at++] = join_leaps(one, known[1 << left | i]);
      }
    }
  }
  for (int at = 0; at < 1 << LOOK_BITS; at++) {
    const leap most = known[1 << LOOK_BITS | at];
    made->leaps[at] = most != 0 ? most : (leap)(UNKNOWN << 8);
  }
}

static void make(table *made, const JHUFF_TBL *from, int ac) {
  if (made->made && memcmp(made->lengths, from->bits, sizeof made->lengths) == 0 &&
      memcmp(made->values, from->huffval, sizeof made->values) == 0)
    return;
  memcpy(made->lengths, from->bits, sizeof made->lengths);
  memcpy(made->values, from->huffval, sizeof made->values);
  made->ac = ac;
  make_codes(made);
  make_fast(made);
  if (ac) make_pairs(made);
  if (ac) make_leaps(made);
  made->made = 1;
}

/* Decoding. */

/* Needs LONGEST bits. */
static ALWAYS_INLINE symbol next_symbol(j_decompress_ptr codec, const reader *in, const table *made) {
  symbol next = made->fast[top(in, LOOK_BITS)];
  if (__builtin_expect(next == 0, 0)) {
    next = long_symbol(made, top(in, LONGEST));
    if (next == 0) damaged(codec, NO_CODE);
  }
  return next;
}

static ALWAYS_INLINE int decode_dc(j_decompress_ptr codec, reader *in, const table *made) {
  symbol next;
  int value;
  refill(in);
  next = next_symbol(codec, in, made);
  value = number(in, next);
  consume(in, total_bits(next));
  return value;
}

/* Returns the first pair that isn't known or reaches the block's end. All of a window's decoding takes 10 % less time
 * than with a symbol at a time and its number cut out of the bits. */
static ALWAYS_INLINE pair decode_pairs(reader *in, const table *made, JCOEF *block, unsigned *k) {
  for (;;) {
    refill(in);
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i++) {
      const pair next = made->pairs[top(in, LOOK_BITS)];
      const unsigned first = *k + first_of(next), both = *k + both_of(next);
      if (both >= 63) return next;
      block[NATURAL[first]] = (JCOEF)(next >> VALUE_AT);
      block[NATURAL[both]] = (JCOEF)(next >> SECOND_AT);
      consume(in, (int)pair_bits(next));
      *k = both;
    }
  }
}

static ALWAYS_INLINE void decode_ac(j_decompress_ptr codec, reader *in, const table *made, JCOEF *block) {
  unsigned k = 0; /* the coefficient before */
  do {
    const pair next = decode_pairs(in, made, block, &k);
    const unsigned first = k + first_of(next);
    if (first_of(next) == END_OF_BLOCK || (both_of(next) >= END_OF_BLOCK && first < 63)) {
      JCOEF none, *to = first < 63 ? &block[NATURAL[first]] : &none;
      *to = (JCOEF)(next >> VALUE_AT);
      consume(in, (int)pair_bits(next));
      k = 64;
    } else { /* one alone */
      symbol one;
      refill(in);
      one = next_symbol(codec, in, made);
      k += (unsigned)advance_of(one);
      if (k < 64) block[NATURAL[k]] = (JCOEF)number(in, one);
      else if (advance_of(one) != END_OF_BLOCK) damaged(codec, NO_CODE);
      consume(in, total_bits(one));
    }
  } while (k < 63);
}

/* Returns the first leap that isn't known or reaches the block's end. Without a look at how many bits are left all of a
 * window's decoding takes 4.5 % less time. */
static ALWAYS_INLINE leap skip_leaps(reader *in, const table *made, unsigned *k) {
  for (;;) {
    refill(in);
#pragma GCC unroll 8
    for (int i = 0; i < LEAPS; i++) {
      const leap next = made->leaps[top(in, LOOK_BITS)];
      const unsigned after = *k + leap_advance(next);
      if (after >= 63) return next;
      consume(in, (int)leap_bits(next));
      *k = after;
    }
  }
}

static ALWAYS_INLINE void skip_ac(j_decompress_ptr codec, reader *in, const table *made) {
  unsigned k = 0; /* the coefficient before */
  do {
    const leap next = skip_leaps(in, made, &k);
    const unsigned after = k + leap_advance(next);
    if (after == 63 || (leap_advance(next) >= END_OF_BLOCK && after < END_OF_BLOCK + 63)) {
      consume(in, (int)leap_bits(next));
      k = 64;
    } else { /* a long code, or the block ends amid the leap */
      symbol one;
      refill(in);
      one = next_symbol(codec, in, made);
      k += (unsigned)advance_of(one);
      if (k >= 64 && advance_of(one) != END_OF_BLOCK) damaged(codec, NO_CODE);
      consume(in, total_bits(one));
    }
  } while (k < 63);
}

static void begin_part(gp_huffman *huffman, int part) {
  const reader start = {huffman->data + huffman->starts[part], 0, 0};
  huffman->in = start;
  huffman->part = part;
  memset(huffman->dc, 0, sizeof huffman->dc);
}

/* Bits of the part that were not read; less than 0 where more were. */
static ptrdiff_t bits_left(const gp_huffman *huffman) {
  const uint8_t *end = huffman->data + huffman->starts[huffman->part + 1];
  return (end - huffman->in.at) * 8 + (ptrdiff_t)huffman->in.count;
}

static void restart(j_decompress_ptr codec, gp_huffman *huffman) {
  if (bits_left(huffman) >= 8) damaged(codec, "data is left over before a restart marker");
  if (huffman->part + 1 == huffman->parts) damaged(codec, GP_CUT);
  begin_part(huffman, huffman->part + 1);
  huffman->restart_in = codec->restart_interval;
}

static int needs_ac(const jpeg_component_info *component) {
#if JPEG_LIB_VERSION >= 70
  return component->DCT_h_scaled_size > 1;
#else
  return component->DCT_scaled_size > 1;
#endif
}

static ALWAYS_INLINE boolean mcu(j_decompress_ptr codec, JBLOCKROW *blocks) {
  gp_huffman *huffman = gp_huffman_of(codec);
  const int wanted = blocks != NULL && huffman->column >= huffman->first && huffman->column <= huffman->last;
  reader in;
  if (codec->restart_interval != 0) {
    if (huffman->restart_in == 0) restart(codec, huffman);
    huffman->restart_in--;
  }
  in = huffman->in; /* in registers */
  for (int b = 0; b < huffman->blocks; b++) {
    const place *here = &huffman->places[b];
    /* Unsigned, so that a damaged file's sum may wrap. */
    *here->dc = (int)((unsigned)*here->dc + (unsigned)decode_dc(codec, &in, here->dc_table));
    if (wanted) (*blocks[b])[0] = (JCOEF)*here->dc;
    if (wanted && here->whole) {
      decode_ac(codec, &in, here->ac_table, *blocks[b]);
    } else {
      skip_ac(codec, &in, here->ac_table);
    }
  }
  huffman->in = in;
  if (bits_left(huffman) < 0) damaged(codec, GP_CUT);
  if (++huffman->column == (int)codec->MCUs_per_row) huffman->column = 0;
  return TRUE;
}

static boolean decode_mcu(j_decompress_ptr codec, JBLOCKROW *blocks) { return mcu(codec, blocks); }

#if defined(__x86_64__)
/* With shifts that leave the flags alone: all of a window's decoding in 1.3 to 2 % less time. */
__attribute__((target("bmi2"))) static boolean decode_mcu_bmi2(j_decompress_ptr codec, JBLOCKROW *blocks) {
  return mcu(codec, blocks);
}
static int has_bmi2(void) { return __builtin_cpu_supports("bmi2"); }
#else
#define decode_mcu_bmi2 decode_mcu
static int has_bmi2(void) { return 0; }
#endif

static int is_plain(const struct jpeg_decompress_struct *codec) {
  if (codec->progressive_mode || codec->arith_code || codec->data_precision != 8 || codec->unread_marker != 0) return 0;
  if (codec->comps_in_scan != codec->num_components || codec->Ss != 0 || codec->Se != 63) return 0;
  for (int i = 0; i < codec->comps_in_scan; i++) {
    const jpeg_component_info *component = codec->cur_comp_info[i];
    if (codec->dc_huff_tbl_ptrs[component->dc_tbl_no] == NULL || codec->ac_huff_tbl_ptrs[component->ac_tbl_no] == NULL)
      return 0;
  }
  return 1;
}

int gp_huffman_take_over(gp_huffman *huffman, j_decompress_ptr codec, const uint8_t *end, int first, int last) {
  if (!is_plain(codec)) return 0;
  huffman->blocks = codec->blocks_in_MCU;
  for (int b = 0; b < codec->blocks_in_MCU; b++) {
    const int index = codec->MCU_membership[b];
    const jpeg_component_info *component = codec->cur_comp_info[index];
    const place here = {&huffman->tables[0][component->dc_tbl_no], &huffman->tables[1][component->ac_tbl_no],
                        &huffman->dc[index], needs_ac(component)};
    huffman->places[b] = here;
  }
  for (int i = 0; i < codec->comps_in_scan; i++) {
    const jpeg_component_info *component = codec->cur_comp_info[i];
    make(&huffman->tables[0][component->dc_tbl_no], codec->dc_huff_tbl_ptrs[component->dc_tbl_no], 0);
    make(&huffman->tables[1][component->ac_tbl_no], codec->ac_huff_tbl_ptrs[component->ac_tbl_no], 1);
  }
  unstuff(codec, huffman, codec->src->next_input_byte, end);
  begin_part(huffman, 0);
  huffman->first = first;
  huffman->last = last;
  huffman->column = 0;
  huffman->restart_in = codec->restart_interval;
  ((struct entropy_decoder *)codec->entropy)->decode_mcu = has_bmi2() ? decode_mcu_bmi2 : decode_mcu;
  return 1;
}
