#include "jpeg.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "huffman.h"

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or later is needed: older ones and IJG's libjpeg can't decode a window to the same bits"
#endif

enum { END_OF_IMAGE = 0xD9 };
enum { SKIP_MARGIN = 2 }; /* pixels beside a window that the upsampling of its chroma looks at */
enum { NARROWEST = 2 * MAX_SAMP_FACTOR }; /* pixels in which every component has two samples or more */
enum { SMOOTHED = 10 };   /* coefficients of a block, the first ones, that libjpeg guesses */

struct gp_jpeg {
  struct jpeg_decompress_struct codec;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf on_error;
  int status; /* what a longjmp means */
  int max_scans;
  int buffered;         /* all scans were read before the first row */
  const uint8_t *end;   /* of the data */
  int left_margin;      /* pixels of a row before the window */
  gp_huffman *huffman;
  int own_entropy;      /* it decodes this image */
  char message[GP_MESSAGE];
};

static gp_jpeg *owner(j_common_ptr codec) { return (gp_jpeg *)codec->client_data; }
gp_huffman *gp_huffman_of(j_decompress_ptr codec) { return owner((j_common_ptr)codec)->huffman; }

__attribute__((noreturn)) static void fail(gp_jpeg *jpeg, int status, const char *message) {
  jpeg->status = status;
  snprintf(jpeg->message, sizeof jpeg->message, "%s", message);
  longjmp(jpeg->on_error, 1);
}

void gp_huffman_failed(j_decompress_ptr codec, int status, const char *message) {
  fail(owner((j_common_ptr)codec), status, message);
}

static void on_libjpeg_error(j_common_ptr codec) {
  char text[JMSG_LENGTH_MAX];
  int status = GP_DAMAGED;
  codec->err->format_message(codec, text);
  switch (codec->err->msg_code) {
    case JERR_NO_SOI: status = GP_NOT_JPEG; break;
    case JERR_NO_BACKING_STORE: status = GP_LIMIT; snprintf(text, sizeof text, "it needs more memory than allowed"); break;
    case JERR_OUT_OF_MEMORY: status = GP_NO_MEMORY; break;
    case JERR_NOT_COMPILED:
    case JERR_NOTIMPL:
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_SOF_UNSUPPORTED: status = GP_UNSUPPORTED; break;
    default: break;
  }
  fail(owner(codec), status, text);
}

/* libjpeg's warnings mean damaged data; it would fill in grey and go on. */
static void on_libjpeg_message(j_common_ptr codec, int level) {
  if (level < 0) on_libjpeg_error(codec);
}

static void print_nothing(j_common_ptr codec) { (void)codec; }

static void count_scans(j_common_ptr codec) {
  gp_jpeg *jpeg = owner(codec);
  if (jpeg->codec.input_scan_number > jpeg->max_scans) {
    char text[GP_MESSAGE];
    snprintf(text, sizeof text, "it has more than %d scans", jpeg->max_scans);
    fail(jpeg, GP_LIMIT, text);
  }
}

static void nothing_to_begin(j_decompress_ptr codec) { (void)codec; }
static void nothing_to_end(j_decompress_ptr codec) { (void)codec; }

static boolean at_end_of_data(j_decompress_ptr codec) {
  fail(owner((j_common_ptr)codec), GP_DAMAGED, GP_CUT);
  return FALSE;
}

static void skip_bytes(j_decompress_ptr codec, long count) {
  struct jpeg_source_mgr *source = codec->src;
  if (count <= 0) return;
  if ((size_t)count > source->bytes_in_buffer) at_end_of_data(codec);
  source->next_input_byte += count;
  source->bytes_in_buffer -= (size_t)count;
}

/* A codec keeps the tables of the image before, by which libjpeg would decode one that lacks its own. */
static void renew(gp_jpeg *jpeg) {
  jpeg_destroy_decompress(&jpeg->codec); /* nothing, the first time */
  jpeg_create_decompress(&jpeg->codec);
  jpeg->codec.src = &jpeg->source;
  jpeg->codec.progress = &jpeg->progress;
}

/* No memory, or a library of another version than the headers, ends in 0. */
static int create(gp_jpeg *jpeg) {
  if (setjmp(jpeg->on_error) != 0) return 0;
  renew(jpeg);
  return 1;
}

gp_jpeg *gp_jpeg_new(int own_entropy) {
  gp_jpeg *jpeg = (gp_jpeg *)calloc(1, sizeof *jpeg);
  if (jpeg == NULL) return NULL;
  jpeg->codec.err = jpeg_std_error(&jpeg->errors);
  jpeg->errors.error_exit = on_libjpeg_error;
  jpeg->errors.emit_message = on_libjpeg_message;
  jpeg->errors.output_message = print_nothing;
  jpeg->codec.client_data = jpeg;
  if (own_entropy) jpeg->huffman = gp_huffman_new();
  if (!create(jpeg) || (own_entropy && jpeg->huffman == NULL)) {
    gp_jpeg_free(jpeg);
    return NULL;
  }
  jpeg->source.init_source = nothing_to_begin;
  jpeg->source.fill_input_buffer = at_end_of_data;
  jpeg->source.skip_input_data = skip_bytes;
  jpeg->source.resync_to_restart = jpeg_resync_to_restart;
  jpeg->source.term_source = nothing_to_end;
  jpeg->progress.progress_monitor = count_scans;
  return jpeg;
}

void gp_jpeg_free(gp_jpeg *jpeg) {
  if (jpeg == NULL) return;
  jpeg_destroy_decompress(&jpeg->codec);
  gp_huffman_free(jpeg->huffman);
  free(jpeg);
}

static int refuse(gp_jpeg *jpeg) {
  jpeg_abort_decompress(&jpeg->codec);
  return jpeg->status;
}

static void check_kind(gp_jpeg *jpeg) {
  const struct jpeg_decompress_struct *codec = &jpeg->codec;
  char text[GP_MESSAGE];
  if (codec->data_precision != 8) {
    snprintf(text, sizeof text, "a JPEG of %d bits a channel", codec->data_precision);
    fail(jpeg, GP_UNSUPPORTED, text);
  }
  switch (codec->jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_RGB:
    case JCS_YCbCr: return;
    case JCS_CMYK: fail(jpeg, GP_UNSUPPORTED, "a CMYK JPEG"); return;
    case JCS_YCCK: fail(jpeg, GP_UNSUPPORTED, "a YCCK JPEG"); return;
    default:
      snprintf(text, sizeof text, "a JPEG of %d channels of unknown meaning", codec->num_components);
      fail(jpeg, GP_UNSUPPORTED, text);
  }
}

int gp_jpeg_open(gp_jpeg *jpeg, const uint8_t *data, size_t size, const gp_limits *limits) {
  struct jpeg_decompress_struct *codec = &jpeg->codec;
  if (setjmp(jpeg->on_error) != 0) return refuse(jpeg);
  jpeg->message[0] = 0;
  /* A file of two bytes or fewer is no JPEG either; libjpeg would call it damaged. */
  if (size < 3 || data[0] != 0xFF || data[1] != 0xD8) fail(jpeg, GP_NOT_JPEG, "it does not begin as a JPEG");
  renew(jpeg);
  jpeg->source.next_input_byte = data;
  jpeg->source.bytes_in_buffer = size;
  jpeg->end = data + size;
  jpeg->max_scans = limits->max_scans;
  codec->mem->max_memory_to_use = limits->max_memory > 0 ? (long)limits->max_memory : 1; /* 0 would mean any */
  jpeg_read_header(codec, TRUE);
  if ((int64_t)codec->image_width * (int64_t)codec->image_height > limits->max_pixels) {
    char text[GP_MESSAGE];
    snprintf(text, sizeof text, "it has %u x %u pixels, more than the %lld that are allowed", codec->image_width,
             codec->image_height, (long long)limits->max_pixels);
    fail(jpeg, GP_LIMIT, text);
  }
  check_kind(jpeg);
  return GP_OK;
}

int gp_jpeg_height(const gp_jpeg *jpeg) { return (int)jpeg->codec.image_height; }
int gp_jpeg_width(const gp_jpeg *jpeg) { return (int)jpeg->codec.image_width; }

/* Of an MCU, after scaling. */
static int mcu_width(const struct jpeg_decompress_struct *codec) {
#if JPEG_LIB_VERSION >= 70
  const int block = codec->min_DCT_h_scaled_size;
#else
  const int block = codec->min_DCT_scaled_size;
#endif
  return codec->num_components == 1 ? block : block * codec->max_h_samp_factor;
}

static void take_over(gp_jpeg *jpeg, int offset, int columns) {
  const int width = mcu_width(&jpeg->codec);
  jpeg->own_entropy = !jpeg->buffered && jpeg->huffman != NULL &&
                      gp_huffman_take_over(jpeg->huffman, &jpeg->codec, jpeg->end, offset / width,
                                           (offset + columns - 1) / width);
}

static int smaller(int one, int other) { return one < other ? one : other; }

/* Narrows the rows to the columns of the window and those beside it that its pixels depend on. Where a component would be
 * left with one sample, libjpeg would upsample the others in another way than it does in the whole image. */
static void crop_columns(gp_jpeg *jpeg, int left, int width) {
  struct jpeg_decompress_struct *codec = &jpeg->codec;
  const int all = (int)codec->output_width;
  int end = smaller(left + width + SKIP_MARGIN, all), begin = smaller(left - SKIP_MARGIN, end - NARROWEST);
  JDIMENSION offset, columns;
  if (begin < 0) begin = 0;
  if (end < NARROWEST) end = smaller(NARROWEST, all);
  offset = (JDIMENSION)begin;
  columns = (JDIMENSION)(end - begin);
  if (columns < codec->output_width) jpeg_crop_scanline(codec, &offset, &columns);
  else offset = 0;
  jpeg->left_margin = left - (int)offset;
  take_over(jpeg, (int)offset, (int)columns);
}

/* libjpeg guesses what the missing scans of a progressive file would say: from the blocks around, which a window lacks
 * at its edges, and differently from version to version. */
static void check_all_scans(gp_jpeg *jpeg) {
  const struct jpeg_decompress_struct *codec = &jpeg->codec;
  if (codec->coef_bits == NULL) return;
  for (int i = 0; i < codec->num_components; i++) {
    for (int k = 0; k < SMOOTHED; k++) {
      if (codec->coef_bits[i][k] != 0) fail(jpeg, GP_UNSUPPORTED, "a progressive JPEG without its last scans");
    }
  }
}

int gp_jpeg_begin(gp_jpeg *jpeg, int denominator, int top, int left, int height, int width) {
  struct jpeg_decompress_struct *codec = &jpeg->codec;
  if (setjmp(jpeg->on_error) != 0) return refuse(jpeg);
  codec->out_color_space = JCS_EXT_RGBX;
  codec->dct_method = JDCT_ISLOW;
  codec->scale_num = 1;
  codec->scale_denom = (unsigned)denominator;
  jpeg->buffered = jpeg_has_multiple_scans(codec);
  jpeg_start_decompress(codec);
  check_all_scans(jpeg);
  if (top < 0 || left < 0 || height < 1 || width < 1 || top + height > (int)codec->output_height ||
      left + width > (int)codec->output_width)
    fail(jpeg, GP_CHANGED, "the window lies outside the image");
  crop_columns(jpeg, left, width);
  if (top > 0) jpeg_skip_scanlines(codec, (JDIMENSION)top);
  return GP_OK;
}

size_t gp_jpeg_row_bytes(const gp_jpeg *jpeg) { return (size_t)jpeg->codec.output_width * 4; }
size_t gp_jpeg_row_offset(const gp_jpeg *jpeg) { return (size_t)jpeg->left_margin * 4; }

int gp_jpeg_rows(gp_jpeg *jpeg, uint8_t *rows, size_t stride, int count) {
  if (setjmp(jpeg->on_error) != 0) return refuse(jpeg);
  for (int done = 0; done < count;) {
    JSAMPROW wanted[16];
    int n = count - done < 16 ? count - done : 16;
    for (int i = 0; i < n; i++) wanted[i] = rows + (size_t)(done + i) * stride;
    done += (int)jpeg_read_scanlines(&jpeg->codec, wanted, (JDIMENSION)n);
  }
  return GP_OK;
}

static int belongs_to_scan(int marker) { return marker == 0 || (marker >= 0xD0 && marker <= 0xD7); }

/* Rows below the window are not decoded. A decoder of the whole image refuses it when it is cut short, and may when
 * another marker than a restart stands among them; other damage to the entropy-coded data is only a warning to it. */
static void check_tail(gp_jpeg *jpeg) {
  const uint8_t *at = jpeg->source.next_input_byte;
  int marker = jpeg->codec.unread_marker;
  while (belongs_to_scan(marker)) {
    do { /* 0xFF may be repeated before a marker */
      at = jpeg->end - at < 2 ? NULL : (const uint8_t *)memchr(at, 0xFF, (size_t)(jpeg->end - at) - 1);
      if (at == NULL) fail(jpeg, GP_DAMAGED, GP_CUT);
      marker = *++at;
    } while (marker == 0xFF);
    ++at;
  }
  if (marker != END_OF_IMAGE) gp_huffman_foreign_marker(&jpeg->codec, marker);
}

int gp_jpeg_end(gp_jpeg *jpeg) {
  if (setjmp(jpeg->on_error) != 0) return refuse(jpeg);
  if (!jpeg->buffered && !jpeg->own_entropy) check_tail(jpeg);
  jpeg_abort_decompress(&jpeg->codec);
  return GP_OK;
}

void gp_jpeg_trim(gp_jpeg *jpeg) {
  if (jpeg->huffman != NULL) gp_huffman_trim(jpeg->huffman);
}

const char *gp_jpeg_message(const gp_jpeg *jpeg) { return jpeg->message; }
int gp_jpeg_version(void) { return LIBJPEG_TURBO_VERSION_NUMBER; }
