#include "walk.h"

#include <string.h>

enum { SOF0 = 0xC0, SOF1 = 0xC1, SOF2 = 0xC2, DHT = 0xC4, RST0 = 0xD0, RST7 = 0xD7, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA,
       DQT = 0xDB, DRI = 0xDD, APP0 = 0xE0, APP1 = 0xE1, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE };
enum { MOST_COMPONENTS = 3, MOST_PIXELS = 65500, MOST_BLOCKS = 10 /* of an MCU */, ORIENTATION = 0x0112, SHORT = 3 };
enum { SMOOTHED = 0x3FF }; /* the first ten coefficients: libjpeg guesses of these what no scan has said */

typedef struct {
  const uint8_t *at, *end;
} part;

typedef struct {
  int marker; /* of the frame, 0 before it */
  int height, width, components;
  uint8_t ids[MOST_COMPONENTS], across[MOST_COMPONENTS], down[MOST_COMPONENTS], quantization[MOST_COMPONENTS];
} frame;

typedef struct {
  frame frame;
  unsigned quantization, dc, ac; /* tables that are defined, a bit each */
  int jfif;
  int transform; /* of Adobe's segment, -1 without one */
  int exif;      /* segments */
  int orientation;
  int scans, scanned; /* and the components of the last one */
  int restarts;       /* whether it has an interval */
  uint64_t known[MOST_COMPONENTS]; /* coefficients to their last bit, a bit each */
} walk;

static ptrdiff_t left(const part *in) { return in->end - in->at; }
static unsigned two(const uint8_t *at) { return (unsigned)at[0] << 8 | at[1]; }
static int begins(const part *in, const char *text, size_t length) {
  return left(in) >= (ptrdiff_t)length && memcmp(in->at, text, length) == 0;
}

static const char *quantization_tables(walk *w, part in) {
  if (left(&in) == 0) return "a segment without quantization tables";
  for (; in.at < in.end; in.at += 65) {
    if (in.at[0] > 3) return "a quantization table of 16 bits or of a number beyond 3";
    if (left(&in) < 65) return "a quantization table that ends early";
    if (memchr(in.at + 1, 0, 64) != NULL) return "a quantization table with a zero";
    w->quantization |= 1u << in.at[0];
  }
  return NULL;
}

/* As libjpeg has it: no code is all ones, and categories of DC are at most 15. */
static const char *huffman_tables(walk *w, part in) {
  if (left(&in) == 0) return "a segment without Huffman tables";
  while (in.at < in.end) {
    const int is_ac = in.at[0] >> 4, number = in.at[0] & 15;
    unsigned codes = 0, symbols = 0;
    if (is_ac > 1 || number > 3) return "a Huffman table of unknown class or number";
    if (left(&in) < 17) return "a Huffman table that ends early";
    for (int bits = 1; bits <= 16; bits++) {
      symbols += in.at[bits];
      codes = codes * 2 + in.at[bits];
      if (codes >= 1u << bits) return "a Huffman table with more codes than there are";
    }
    if (symbols == 0 || symbols > 256) return "a Huffman table of no symbol or more than 256";
    in.at += 17;
    if (left(&in) < (ptrdiff_t)symbols) return "a Huffman table that ends early";
    for (unsigned i = 0; !is_ac && i < symbols; i++) {
      if (in.at[i] > 15) return "a Huffman table with an impossible symbol";
    }
    in.at += symbols;
    *(is_ac ? &w->ac : &w->dc) |= 1u << number;
  }
  return NULL;
}

/* Chroma in equal parts, each a whole part of the luma. */
static int usual_sampling(const frame *f) {
  int blocks = 0;
  for (int i = 0; i < f->components; i++) blocks += f->across[i] * f->down[i];
  if (f->components == 1) return 1; /* of one component the factors mean nothing */
  return blocks <= MOST_BLOCKS && f->across[1] == f->across[2] && f->down[1] == f->down[2] &&
         f->across[0] % f->across[1] == 0 && f->down[0] % f->down[1] == 0;
}

static const char *start_of_frame(walk *w, int marker, part in) {
  frame *f = &w->frame;
  if (f->marker != 0) return "a second frame";
  if (left(&in) < 6) return "a frame header that ends early";
  if (in.at[0] != 8) return "a frame of other than 8 bits";
  *f = (frame){.marker = marker, .height = (int)two(in.at + 1), .width = (int)two(in.at + 3), .components = in.at[5]};
  if (f->height == 0 || f->width == 0) return "a frame without height or width";
  if (f->height > MOST_PIXELS || f->width > MOST_PIXELS) return "a frame larger than libjpeg takes";
  if (f->components != 1 && f->components != MOST_COMPONENTS) return "a frame of neither 1 nor 3 components";
  if (left(&in) != 6 + 3 * f->components) return "a frame header of a wrong length";
  in.at += 6;
  for (int i = 0; i < f->components; i++, in.at += 3) {
    f->ids[i] = in.at[0], f->across[i] = in.at[1] >> 4, f->down[i] = in.at[1] & 15, f->quantization[i] = in.at[2];
    if (memchr(f->ids, f->ids[i], (size_t)i) != NULL) return "two components of one name";
    if (f->across[i] < 1 || f->across[i] > 4 || f->down[i] < 1 || f->down[i] > 4) return "a wrong sampling factor";
    if (f->quantization[i] > 3) return "a component with a wrong quantization table";
  }
  return usual_sampling(f) ? NULL : "unusual sampling factors";
}

/* What the three components are must follow from one rule only: decoders weigh several in different ways. */
static const char *check_colours(const walk *w) {
  const uint8_t *ids = w->frame.ids;
  if (w->frame.components == 1) return NULL;
  if (w->transform > 1) return "an Adobe segment for other than three components";
  if (w->jfif) return w->transform == 0 ? "colours of which JFIF and Adobe say different things" : NULL;
  if (w->transform >= 0 || (ids[0] == 1 && ids[1] == 2 && ids[2] == 3)) return NULL;
  return "colours that no segment explains";
}

/* Spectral selection and approximation. */
static const char *check_progression(const walk *w, const uint8_t *selection) {
  const int first = selection[0], last = selection[1], before = selection[2] >> 4, now = selection[2] & 15;
  if (w->frame.marker != SOF2) {
    return first == 0 && last == 63 && selection[2] == 0 ? NULL : "a sequential scan of a part of the coefficients";
  }
  if (first == 0 ? last != 0 : last < first || last > 63 || w->scanned != 1) return "a wrong spectral selection";
  if (before == 0) return now <= 13 ? NULL : "a wrong approximation";
  return w->scans > 1 && now == before - 1 ? NULL : "a wrong approximation";
}

static const char *start_of_scan(walk *w, part in) {
  const frame *f = &w->frame;
  const int most = f->marker == SOF0 ? 1 : 3, sequential = f->marker != SOF2;
  const uint8_t *selection;
  int component = 0, needs_dc, needs_ac;
  if (f->marker == 0) return "a scan before the frame";
  w->scans++;
  w->scanned = left(&in) < 1 ? 0 : in.at[0];
  if (w->scanned < 1 || w->scanned > f->components) return "a scan of a wrong number of components";
  if (left(&in) != 4 + 2 * w->scanned) return "a scan header of a wrong length";
  selection = in.at + 1 + 2 * w->scanned;
  needs_dc = sequential || (selection[0] == 0 && selection[2] >> 4 == 0); /* what refines DC is not coded */
  needs_ac = sequential || selection[0] != 0;
  for (int i = 0; i < w->scanned; i++) {
    const uint8_t *named = in.at + 1 + 2 * i;
    const int dc = named[1] >> 4, ac = named[1] & 15;
    while (component < f->components && f->ids[component] != named[0]) component++;
    if (component++ == f->components) return "a scan of a component that the frame lacks";
    if ((selection[2] & 15) == 0)
      w->known[component - 1] |= ~UINT64_C(0) << (selection[0] & 63) & ~UINT64_C(0) >> (63 - (selection[1] & 63));
    if (dc > most || ac > most) return "a scan with a wrong Huffman table";
    if ((needs_dc && !(w->dc >> dc & 1)) || (needs_ac && !(w->ac >> ac & 1))) return "a scan without its Huffman table";
  }
  for (int i = 0; i < f->components; i++) {
    if (!(w->quantization >> f->quantization[i] & 1)) return "a component without its quantization table";
  }
  return check_progression(w, selection);
}

static unsigned exif_number(const uint8_t *at, int bytes, int little) {
  unsigned value = 0;
  for (int i = 0; i < bytes; i++) value = value << 8 | at[little ? bytes - 1 - i : i];
  return value;
}

/* Whether an entry's values, if they don't stand in the entry itself, lie within the `size` bytes of EXIF. */
static int entry_is_whole(const uint8_t *entry, size_t size, int little) {
  static const uint8_t kBytes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8}; /* of a value of each type */
  const unsigned type = exif_number(entry + 2, 2, little), count = exif_number(entry + 4, 4, little);
  const size_t at = exif_number(entry + 8, 4, little);
  if (type < 1 || type >= sizeof kBytes || count > size) return 0;
  return count * kBytes[type] <= 4 || (at <= size && count * kBytes[type] <= size - at);
}

/* The orientation in the first directory of EXIF; 0 where something stands there that readers take differently: some
 * give a directory up as a whole for one wrong entry. */
static int exif_orientation(part in) {
  const ptrdiff_t size = left(&in);
  const int little = begins(&in, "II*\0", 4);
  int found = 1, seen = 0;
  if (size < 8 || (!little && !begins(&in, "MM\0*", 4))) return 0;
  const size_t at = exif_number(in.at + 4, 4, little);
  if (at < 8 || at > (size_t)size - 2) return 0;
  const size_t entries = exif_number(in.at + at, 2, little);
  if ((size_t)size - at - 2 < 12 * entries) return 0;
  for (size_t i = 0; i < entries; i++) {
    const uint8_t *entry = in.at + at + 2 + 12 * i;
    if (!entry_is_whole(entry, (size_t)size, little)) return 0;
    if (exif_number(entry, 2, little) != ORIENTATION) continue;
    if (seen++ || exif_number(entry + 2, 2, little) != SHORT || exif_number(entry + 4, 4, little) != 1) return 0;
    found = (int)exif_number(entry + 8, 2, little);
    if (found > 8) return 0;
    if (found == 0) found = 1; /* some programs write it for "unknown" */
  }
  return found;
}

static const char *application_data(walk *w, int marker, part in) {
  if (marker == APP0 && begins(&in, "JFIF\0", 5)) {
    if (left(&in) < 14) return "a JFIF segment that ends early";
    w->jfif = 1;
  }
  if (marker == APP14 && begins(&in, "Adobe", 5)) {
    if (left(&in) < 12) return "an Adobe segment that ends early";
    w->transform = in.at[11];
  }
  if (marker == APP1 && begins(&in, "Exif", 4)) {
    const int whole = begins(&in, "Exif\0\0", 6);
    in.at += whole ? 6 : 4;
    w->orientation = whole && w->exif++ == 0 ? exif_orientation(in) : 0;
  }
  return NULL;
}

static const char *segment(walk *w, int marker, part in) {
  switch (marker) {
    case SOF0:
    case SOF1:
    case SOF2: return start_of_frame(w, marker, in);
    case DHT: return huffman_tables(w, in);
    case DQT: return quantization_tables(w, in);
    case DRI:
      if (left(&in) != 2) return "a restart interval of a wrong length";
      w->restarts = two(in.at) != 0;
      return NULL;
    case SOS: {
      const char *odd = start_of_scan(w, in);
      return odd != NULL ? odd : check_colours(w);
    }
    case COM: return NULL;
    default: return marker >= APP0 && marker <= APP15 ? application_data(w, marker, in) : "an unusual marker";
  }
}

/* The next segment's marker and content; 0xFF may be repeated before a marker. */
static const char *next_segment(part *file, int *marker, part *content) {
  if (left(file) < 1 || *file->at != 0xFF) return "something else where a marker belongs";
  while (left(file) > 0 && *file->at == 0xFF) file->at++;
  if (left(file) < 3) return "an end before the first scan";
  *marker = *file->at++;
  const unsigned length = two(file->at);
  if (length < 2 || left(file) < (ptrdiff_t)length) return "a segment of a wrong length";
  *content = (part){file->at + 2, file->at + length};
  file->at += length;
  return NULL;
}

/* The next marker: a 0xFF that is no stuffed byte; NULL where there is none. 2 to 3 us in 80 KB, a call of memchr each 0xFF;
 * AVX2 without calls takes 1.5 to 1.8. */
static const uint8_t *next_marker(const uint8_t *at, const uint8_t *end) {
  while ((at = end - at < 2 ? NULL : memchr(at, 0xFF, (size_t)(end - at) - 1)) != NULL && at[1] == 0) at += 2;
  return at;
}

/* Passes what is coded, with its restarts, up to another marker. */
static const char *skip_scan(const walk *w, part *file) {
  for (int restart = RST0;; restart = restart == RST7 ? RST0 : restart + 1) {
    file->at = next_marker(file->at, file->end);
    if (file->at == NULL) return "an end within a scan";
    if (file->at[1] < RST0 || file->at[1] > RST7) return NULL;
    if (!w->restarts || file->at[1] != restart) return "a restart out of turn";
    file->at += 2;
  }
}

static int at_the_end(const part *file) { return left(file) >= 2 && file->at[0] == 0xFF && file->at[1] == EOI; }

static const char *segments_to_scan(walk *w, part *file) {
  part content;
  for (int marker = 0; marker != SOS;) {
    const char *odd = next_segment(file, &marker, &content);
    if (odd == NULL) odd = segment(w, marker, content);
    if (odd != NULL) return odd;
  }
  return NULL;
}

static const char *check_known(const walk *w) {
  for (int i = 0; i < w->frame.components; i++) {
    if ((w->known[i] & SMOOTHED) != SMOOTHED) return "a progressive file without its last scans";
  }
  return NULL;
}

/* What follows the headers of the first scan. A scan costs every decoder a pass over the whole image; where the first one
 * has all, some go on to the next marker and others end there. */
static const char *scans(walk *w, part *file, int max_scans) {
  const int whole = w->frame.marker != SOF2 && w->scanned == w->frame.components;
  for (;;) {
    const char *odd = skip_scan(w, file);
    if (odd == NULL && at_the_end(file)) return check_known(w);
    if (odd == NULL && whole) odd = "another marker than the end behind a scan";
    if (odd == NULL) odd = w->scans == max_scans ? "more scans than are allowed" : segments_to_scan(w, file);
    if (odd != NULL) return odd;
  }
}

const char *gp_walk(const uint8_t *data, size_t size, int max_scans, gp_header *header) {
  walk w = {.transform = -1, .orientation = 1};
  part file = {data, data + size};
  const char *odd;
  *header = (gp_header){0, 0, 0};
  if (size < 2 || data[0] != 0xFF || data[1] != SOI) return "no JPEG";
  file.at += 2;
  odd = segments_to_scan(&w, &file);
  if (odd == NULL) odd = scans(&w, &file, max_scans);
  if (odd == NULL) *header = (gp_header){w.frame.height, w.frame.width, w.orientation};
  return odd;
}
