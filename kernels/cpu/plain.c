#include "plain.h"

#include <string.h>

enum { SOF0 = 0xC0, SOF2 = 0xC2, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD, APP0 = 0xE0,
       APP15 = 0xEF, COM = 0xFE };
enum { FURTHEST = 65536, TAIL = 64 }; /* bytes in which the scan begins, and the end is; as sources/headers.py has it */

static int ends(const uint8_t *data, size_t size) {
  const uint8_t *end = data + size;
  for (const uint8_t *at = size > TAIL ? end - TAIL : data; end - at >= 2; at++) {
    if (at[0] == 0xFF && at[1] == EOI) return 1;
  }
  return 0;
}

static int is_table(int marker) {
  return marker == DHT || marker == DQT || marker == DRI || marker == COM || (marker >= APP0 && marker <= APP15);
}

int gp_plain(const uint8_t *data, size_t size, int64_t most_pixels, int32_t *height, int32_t *width) {
  const size_t most = size < FURTHEST ? size : FURTHEST;
  int32_t tall = 0, wide = 0;
  if (size < 3 || data[0] != 0xFF || data[1] != SOI || data[2] != 0xFF) return 0;
  for (size_t at = 2; at + 10 <= most && data[at] == 0xFF;) {
    const uint8_t *in = data + at + 4;
    const int marker = data[at + 1], length = data[at + 2] << 8 | data[at + 3];
    if (marker == SOS) {
      if (tall == 0 || !ends(data, size)) return 0;
      *height = tall, *width = wide;
      return 1;
    }
    if (marker >= SOF0 && marker <= SOF2 && tall == 0) {
      const int32_t down = in[1] << 8 | in[2], across = in[3] << 8 | in[4];
      const int64_t pixels = (int64_t)down * across;
      if (in[0] != 8 || (in[5] != 1 && in[5] != 3 && in[5] != 4) || pixels == 0 || pixels > most_pixels) return 0;
      tall = down, wide = across;
    } else if (!is_table(marker)) {
      return 0;
    } else if (marker >= APP0 && (memcmp(in, "Exif", 4) == 0 || memcmp(in, "MPF\0", 4) == 0)) {
      return 0;
    }
    at += length > 2 ? 2 + (size_t)length : 4;
  }
  return 0;
}
