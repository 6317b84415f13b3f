#include "huffman.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "jpeg.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum {
  LOOK_BITS = 10, /* codes of up to so many bits are found in one step; 9 to 11 measured alike */
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

/* What the next LOOK_BITS bits pass over, in one number; 0 where not even one symbol is known.
 * total, advance: of all symbols but for the END_OF_BLOCK
 * ends:           whether that is the last one */
typedef uint16_t leap;
enum { LEAP_ENDS_AT = 5, LEAP_ADVANCE_AT = 6 };

typedef struct {
  UINT8 lengths[17], values[256]; /* the JPEG's table from which the rest was made */
  int made, ac;
  int32_t limit[LONGEST + 2]; /* by length: above the largest code, in LONGEST bits; of LONGEST + 1: above all */
  int32_t offset[LONGEST + 1];
  symbol fast[1 << LOOK_BITS];
  leap leaps[1 << LOOK_BITS];
} table;

typedef struct {
  const uint8_t *at;
  uint64_t buffer; /* the next bits, from the top */
  unsigned count;  /* bits in it */
} reader;

struct gp_huffman {
  reader in;
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

static symbol symbol_of(const table *made, int32_t bits, int longest) {
  int length, size, advance;
  const int value = look_up(made, bits, &length);
  if (value < 0 || length > longest) return 0;
  if (!made->ac) return pack(length, value & 15, 0);
  size = value & 15;
  advance = (value >> 4) + 1;
  return pack(length, size, size == 0 && advance != 16 ? END_OF_BLOCK : advance);
}

/* As many symbols as are known from LOOK_BITS bits; the number after the last one may reach beyond them. */
static leap longest_leap(const table *made, int index) {
  int total = 0, advance = 0, ends = 0;
  while (total < LOOK_BITS && !ends) {
    const int bits = (index << total) & ((1 << LOOK_BITS) - 1);
    const symbol next = made->fast[bits];
    if (next == 0 || code_bits(next) > LOOK_BITS - total) break;
    ends = advance_of(next) == END_OF_BLOCK;
    if (!ends && advance + advance_of(next) >= 64) break;
    if (!ends) advance += advance_of(next);
    total += total_bits(next);
  }
  return (leap)(total | ends << LEAP_ENDS_AT | advance << LEAP_ADVANCE_AT);
}

static void make(table *made, const JHUFF_TBL *from, int ac) {
  if (made->made && memcmp(made->lengths, from->bits, sizeof made->lengths) == 0 &&
      memcmp(made->values, from->huffval, sizeof made->values) == 0)
    return;
  memcpy(made->lengths, from->bits, sizeof made->lengths);
  memcpy(made->values, from->huffval, sizeof made->values);
  made->ac = ac;
  make_codes(made);
  for (int index = 0; index < 1 << LOOK_BITS; index++)
    made->fast[index] = symbol_of(made, index << (LONGEST - LOOK_BITS), LOOK_BITS);
  for (int index = 0; ac && index < 1 << LOOK_BITS; index++) made->leaps[index] = longest_leap(made, index);
  made->made = 1;
}

/* Decoding. */

/* Needs LONGEST bits. */
static ALWAYS_INLINE symbol next_symbol(j_decompress_ptr codec, const reader *in, const table *made) {
  symbol next = made->fast[top(in, LOOK_BITS)];
  if (__builtin_expect(next == 0, 0)) {
    next = symbol_of(made, top(in, LONGEST), LONGEST);
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

/* One coefficient; leaves the loop with the block's last symbol. */
#define GP_SYMBOL                                     \
  next = next_symbol(codec, in, made);                \
  k += advance_of(next);                              \
  if (k >= 64) break;                                 \
  block[NATURAL[k - 1]] = (JCOEF)number(in, next);    \
  consume(in, total_bits(next));

static ALWAYS_INLINE void decode_ac(j_decompress_ptr codec, reader *in, const table *made, JCOEF *block) {
  symbol next;
  int k = 1;
  for (;;) { /* four symbols seldom have more than the 56 bits, so that the branches are foreseen */
    refill(in);
    GP_SYMBOL
    if (in->count < MOST) continue;
    GP_SYMBOL
    if (in->count < MOST) continue;
    GP_SYMBOL
    if (in->count < MOST) continue;
    GP_SYMBOL
  }
  if (k == 64) {
    block[NATURAL[63]] = (JCOEF)number(in, next);
  } else if (advance_of(next) != END_OF_BLOCK) {
    damaged(codec, NO_CODE);
  }
  consume(in, total_bits(next));
}

/* Passes over what is known of the next bits, or over one symbol. Returns whether the block goes on after coefficient
 * *k. Needs MOST bits. */
static ALWAYS_INLINE int skip_some(j_decompress_ptr codec, reader *in, const table *made, int *k) {
  const leap next = made->leaps[top(in, LOOK_BITS)];
  const int ends = next >> LEAP_ENDS_AT & 1;
  const int after = *k + (next >> LEAP_ADVANCE_AT);
  if (next != 0 && after <= 64 - ends) {
    consume(in, next & 31);
    *k = after;
    return after < 64 && !ends;
  } else { /* a long code, or the block ends amid the leap */
    const symbol one = next_symbol(codec, in, made);
    consume(in, total_bits(one));
    *k += advance_of(one);
    if (*k > 64 && advance_of(one) != END_OF_BLOCK) damaged(codec, NO_CODE);
    return *k < 64;
  }
}

static ALWAYS_INLINE void skip_ac(j_decompress_ptr codec, reader *in, const table *made) {
  int k = 1, more;
  do { /* three leaps seldom have more than the 56 bits */
    refill(in);
    more = skip_some(codec, in, made, &k);
    if (more && in->count >= MOST) more = skip_some(codec, in, made, &k);
    if (more && in->count >= MOST) more = skip_some(codec, in, made, &k);
  } while (more);
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
  for (int b = 0; b < codec->blocks_in_MCU; b++) {
    const int index = codec->MCU_membership[b];
    const jpeg_component_info *component = codec->cur_comp_info[index];
    const table *ac = &huffman->tables[1][component->ac_tbl_no];
    /* Unsigned, so that a damaged file's sum may wrap. */
    huffman->dc[index] = (int)((unsigned)huffman->dc[index] +
                               (unsigned)decode_dc(codec, &in, &huffman->tables[0][component->dc_tbl_no]));
    if (wanted) (*blocks[b])[0] = (JCOEF)huffman->dc[index];
    if (wanted && needs_ac(component)) {
      decode_ac(codec, &in, ac, *blocks[b]);
    } else {
      skip_ac(codec, &in, ac);
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
