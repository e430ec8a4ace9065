/* Schubfach for binary32. x = c * 2^q; the decimals that read back as x lie between the midpoints to its neighbours. With
   10^k about as wide as that interval, at most two multiples of 10^(k+1) and two of 10^k need a look, and each comparison is
   exact on integers: v = 4 * x * 10^-k, rounded to odd, keeps on which side of every candidate it lies. */
#include "base/ftoa.h"

#include <stdint.h>
#include <string.h>

#include "base/status.h"

#define POW10_MIN (-31)

/* ceil(10^k * 2^s), with s such that the top bit is set; k = -31 .. 45 */
static const uint64_t pow10_table[77] = {
    0x81CEB32C4B43FCF5, 0xA2425FF75E14FC32, 0xCAD2F7F5359A3B3F, 0xFD87B5F28300CA0E, 0x9E74D1B791E07E49,
    0xC612062576589DDB, 0xF79687AED3EEC552, 0x9ABE14CD44753B53, 0xC16D9A0095928A28, 0xF1C90080BAF72CB2,
    0x971DA05074DA7BEF, 0xBCE5086492111AEB, 0xEC1E4A7DB69561A6, 0x9392EE8E921D5D08, 0xB877AA3236A4B44A,
    0xE69594BEC44DE15C, 0x901D7CF73AB0ACDA, 0xB424DC35095CD810, 0xE12E13424BB40E14, 0x8CBCCC096F5088CC,
    0xAFEBFF0BCB24AAFF, 0xDBE6FECEBDEDD5BF, 0x89705F4136B4A598, 0xABCC77118461CEFD, 0xD6BF94D5E57A42BD,
    0x8637BD05AF6C69B6, 0xA7C5AC471B478424, 0xD1B71758E219652C, 0x83126E978D4FDF3C, 0xA3D70A3D70A3D70B,
    0xCCCCCCCCCCCCCCCD, 0x8000000000000000, 0xA000000000000000, 0xC800000000000000, 0xFA00000000000000,
    0x9C40000000000000, 0xC350000000000000, 0xF424000000000000, 0x9896800000000000, 0xBEBC200000000000,
    0xEE6B280000000000, 0x9502F90000000000, 0xBA43B74000000000, 0xE8D4A51000000000, 0x9184E72A00000000,
    0xB5E620F480000000, 0xE35FA931A0000000, 0x8E1BC9BF04000000, 0xB1A2BC2EC5000000, 0xDE0B6B3A76400000,
    0x8AC7230489E80000, 0xAD78EBC5AC620000, 0xD8D726B7177A8000, 0x878678326EAC9000, 0xA968163F0A57B400,
    0xD3C21BCECCEDA100, 0x84595161401484A0, 0xA56FA5B99019A5C8, 0xCECB8F27F4200F3A, 0x813F3978F8940985,
    0xA18F07D736B90BE6, 0xC9F2C9CD04674EDF, 0xFC6F7C4045812297, 0x9DC5ADA82B70B59E, 0xC5371912364CE306,
    0xF684DF56C3E01BC7, 0x9A130B963A6C115D, 0xC097CE7BC90715B4, 0xF0BDC21ABB48DB21, 0x96769950B50D88F5,
    0xBC143FA4E250EB32, 0xEB194F8E1AE525FE, 0x92EFD1B8D0CF37BF, 0xB7ABC627050305AE, 0xE596B7B0C643C71A,
    0x8F7E32CE7BEA5C70, 0xB35DBF821AE4F38C,
};

static const char digit_pairs[201] = "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
                                     "4950515253545556575859606162636465666768697071727374757677787980818283848586878889909192939495969798"
                                     "99";

/* floor(q * log10(2)), floor(q * log10(2) + log10(3/4)), floor(k * log2(10)); exact in the range of a float's exponents */
static int log10_pow2(int q)
{
    return (q * 1262611) >> 22;
}

static int log10_three_quarters_pow2(int q)
{
    return (q * 1262611 - 524031) >> 22;
}

static int log2_pow10(int k)
{
    return (k * 1741647) >> 19;
}

/* The top 32 bits of the 96-bit product, the last of them set when anything was cut off. g is rounded up, so that a product
   that should be whole has a 1 in its second word at most. */
static uint32_t round_to_odd(uint64_t g, uint32_t c)
{
    uint64_t low = (uint64_t)(uint32_t)g * c;
    uint64_t mid = (g >> 32) * c + (low >> 32);
    return (uint32_t)(mid >> 32) | ((uint32_t)mid > 1);
}

/* The shortest decimal digits * 10^exp10 for the float with these bits (not zero, not an infinity, not a NaN); of the shortest
   the closest. digits may end in zeros. */
static uint32_t shortest(uint32_t bits, int *exp10)
{
    uint32_t fraction = bits & 0x7FFFFF;
    int biased = (int)(bits >> 23 & 0xFF);
    uint32_t c = biased ? fraction | 0x800000 : fraction;
    int q = biased ? biased - 150 : -149;

    if (q <= 0 && q > -24 && (c & ((1u << -q) - 1)) == 0) { /* a whole number below 2^24 */
        *exp10 = 0;
        return c >> -q;
    }

    uint32_t odd = c & 1; /* an even c owns the ends of its interval */
    int narrow = fraction == 0 && biased > 1; /* the neighbour below is half as far away */
    int k = narrow ? log10_three_quarters_pow2(q) : log10_pow2(q);
    int h = q + log2_pow10(-k) + 1;
    uint64_t g = pow10_table[-k - POW10_MIN];
    uint32_t lower = round_to_odd(g, (4 * c - 2 + (uint32_t)narrow) << h) + odd;
    uint32_t v = round_to_odd(g, (4 * c) << h);
    uint32_t upper = round_to_odd(g, (4 * c + 2) << h) - odd;

    uint32_t s = v / 4;
    if (s >= 10) {
        uint32_t tens = s / 10;
        int below = lower <= 40 * tens;
        int above = 40 * tens + 40 <= upper;
        if (below != above) {
            *exp10 = k + 1;
            return tens + (uint32_t)above;
        }
    }
    *exp10 = k;
    int below = lower <= 4 * s;
    int above = 4 * s + 4 <= upper;
    if (below != above)
        return s + (uint32_t)above;
    uint32_t middle = 4 * s + 2;
    return s + (v > middle || (v == middle && (s & 1)));
}

/* n < 10^9 as nine digits, zeros in front. */
static void put_nine(char *out, uint32_t n)
{
    uint32_t high = n / 10000, low = n - high * 10000;
    uint32_t top = high / 10000;
    high -= top * 10000;
    out[0] = (char)('0' + top);
    memcpy(out + 1, digit_pairs + 2 * (high / 100), 2);
    memcpy(out + 3, digit_pairs + 2 * (high % 100), 2);
    memcpy(out + 5, digit_pairs + 2 * (low / 100), 2);
    memcpy(out + 7, digit_pairs + 2 * (low % 100), 2);
}

static int count_digits(uint32_t n)
{
    return 1 + (n >= 10) + (n >= 100) + (n >= 1000) + (n >= 10000) + (n >= 100000) + (n >= 1000000) + (n >= 10000000) +
           (n >= 100000000);
}

size_t ftoa(float x, char *out)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    BUG_IF((bits & 0x7F800000) == 0x7F800000, "ftoa: JSON has no NaN or infinity");

    char *p = out;
    if (bits >> 31)
        *p++ = '-';
    bits &= 0x7FFFFFFF;
    if (!bits) {
        memcpy(p, "0.0", 3);
        return (size_t)(p + 3 - out);
    }

    int exp10;
    uint32_t n = shortest(bits, &exp10);
    while (n % 10 == 0) {
        n /= 10;
        exp10++;
    }
    int count = count_digits(n);
    int point = count + exp10; /* x = 0.digits * 10^point */
    char nine[18];             /* read up to nine bytes past the first digit */
    put_nine(nine, n);
    memset(nine + 9, '0', 9);
    const char *digits = nine + 9 - count;

    /* Copies of a fixed length, a little more than needed, stay within FTOA_MAX and are faster than exact ones. */
    if (point > -4 && point <= 0) { /* 0.000123 */
        memcpy(p, "0.0000", 5);
        p += 2 - point;
        memcpy(p, digits, 9);
        p += count;
    } else if (point > 0 && point <= 9) {
        memcpy(p, digits, 9); /* zeros follow the digits */
        if (count <= point) { /* 123000.0 */
            p += point;
            *p++ = '.';
            *p++ = '0';
        } else { /* 12.3 */
            p[point] = '.';
            for (int i = point; i < count; i++)
                p[i + 1] = digits[i];
            p += count + 1;
        }
    } else { /* 1.23e-7 */
        p[0] = digits[0];
        p[1] = '.';
        memcpy(p + 2, digits + 1, 8);
        p += count > 1 ? count + 1 : 1;
        int e = point - 1;
        *p++ = 'e';
        if (e < 0) {
            *p++ = '-';
            e = -e;
        }
        if (e >= 10)
            *p++ = (char)('0' + e / 10);
        *p++ = (char)('0' + e % 10);
    }
    return (size_t)(p - out);
}
