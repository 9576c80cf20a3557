//! Numbers in order: int32, int64, double and Decimal128 compared by their exact value.
//!
//! A number is encoded as a class byte and a body that sorts within the class; equal values of different types encode
//! alike. The magnitude of a negative number is encoded like the positive one with every byte of the body inverted.
//!
//! - `NaN` < `-Infinity` < … < `-1 ≥` … < `0` < … < `Infinity`, each a class.
//! - 1 ≤ |v| < 2^63: class by the length of `m = 2·⌊|v|⌋ + (1 if there is a fraction)`, then `m` big-endian without
//!   leading zeros, then the *tail* if there is a fraction.
//! - 0 < |v| < 1 and |v| ≥ 2^63: the tail.
//! - The tail is the bit pattern of |v| rounded towards zero to a double (8 bytes, these patterns sort like their values),
//!   then 0 if that is exact, else 1 and |v| as a normalised decimal (2 bytes biased exponent, 15 bytes 34-digit
//!   coefficient). Only Decimal128 values need the latter, so two values that need it compare as decimals.

use super::value::Value;

/// The classes, between null's and string's type bytes in [`super::order`].
pub(super) const NAN: u8 = 0x1E;
const NEG_INFINITY: u8 = 0x1F;
const NEG_LARGE: u8 = 0x20;
/// Minus the length of `m` in bytes (1 to 8).
const NEG_INT: u8 = 0x29;
const NEG_FRACTION: u8 = 0x29;
const ZERO: u8 = 0x2A;
const POS_FRACTION: u8 = 0x2B;
/// Plus the length of `m` in bytes.
const POS_INT: u8 = 0x2B;
const POS_LARGE: u8 = 0x34;
pub(super) const POS_INFINITY: u8 = 0x35;

const TWO_63: f64 = 9_223_372_036_854_775_808.0;
const MAX_COEFFICIENT: u128 = 9_999_999_999_999_999_999_999_999_999_999_999;
/// 10^33: a normalised coefficient has 34 digits.
const MIN_NORMAL: u128 = 1_000_000_000_000_000_000_000_000_000_000_000;

/// A decoded Decimal128.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decimal {
    NaN,
    Infinity {
        negative: bool,
    },
    /// `±coefficient × 10^exponent`; the coefficient is below 10^34.
    Finite {
        negative: bool,
        coefficient: u128,
        exponent: i32,
    },
}

impl Decimal {
    /// Reads the binary integer encoding. Coefficients that are out of range count as 0 (IEEE 754-2008).
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let bits = u128::from_le_bytes(bytes);
        let negative = bits >> 127 == 1;
        let combination = (bits >> 122) & 0x1F;
        match combination {
            0x1F => Decimal::NaN,
            0x1E => Decimal::Infinity { negative },
            // A coefficient of 114 bits with its highest bit set is above the maximum.
            c if c >> 3 == 3 => {
                Decimal::Finite { negative, coefficient: 0, exponent: ((bits >> 111) & 0x3FFF) as i32 - 6176 }
            }
            _ => {
                let coefficient = bits & ((1 << 113) - 1);
                let coefficient = if coefficient > MAX_COEFFICIENT { 0 } else { coefficient };
                Decimal::Finite { negative, coefficient, exponent: ((bits >> 113) & 0x3FFF) as i32 - 6176 }
            }
        }
    }
}

/// Appends the encoding of a number; other values append nothing.
pub fn push(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Int32(v) => push_int(out, i64::from(v)),
        Value::Int64(v) => push_int(out, v),
        Value::Double(v) => push_double(out, v),
        Value::Decimal(bytes) => push_decimal(out, Decimal::from_bytes(bytes)),
        _ => {}
    }
}

/// Appends the encoding of an integer.
pub fn push_int(out: &mut Vec<u8>, v: i64) {
    match v {
        0 => out.push(ZERO),
        i64::MIN => push_tail_only(out, NEG_LARGE, true, TWO_63.to_bits()),
        _ => push_integer_part(out, v < 0, v.unsigned_abs() << 1),
    }
}

/// Class and `m`.
fn push_integer_part(out: &mut Vec<u8>, negative: bool, m: u64) {
    let skip = (m.leading_zeros() / 8) as usize;
    let length = 8 - skip as u8;
    if negative {
        out.push(NEG_INT - length);
        out.extend_from_slice(&(!m).to_be_bytes()[skip..]);
    } else {
        out.push(POS_INT + length);
        out.extend_from_slice(&m.to_be_bytes()[skip..]);
    }
}

fn push_double(out: &mut Vec<u8>, v: f64) {
    let (negative, size) = (v < 0.0, v.abs());
    if v.is_nan() {
        out.push(NAN);
    } else if v == 0.0 {
        out.push(ZERO);
    } else if size.is_infinite() {
        out.push(if negative { NEG_INFINITY } else { POS_INFINITY });
    } else if size >= TWO_63 {
        push_tail_only(out, if negative { NEG_LARGE } else { POS_LARGE }, negative, size.to_bits());
    } else if size < 1.0 {
        push_tail_only(out, if negative { NEG_FRACTION } else { POS_FRACTION }, negative, size.to_bits());
    } else {
        let whole = size as u64;
        if whole as f64 == size {
            push_integer_part(out, negative, whole << 1);
        } else {
            push_integer_part(out, negative, (whole << 1) | 1);
            push_tail(out, negative, size.to_bits(), None);
        }
    }
}

fn push_decimal(out: &mut Vec<u8>, v: Decimal) {
    let (negative, coefficient, exponent) = match v {
        Decimal::NaN => return out.push(NAN),
        Decimal::Infinity { negative } => return out.push(if negative { NEG_INFINITY } else { POS_INFINITY }),
        Decimal::Finite { coefficient: 0, .. } => return out.push(ZERO),
        Decimal::Finite { negative, coefficient, exponent } => (negative, coefficient, exponent),
    };
    let (whole, fraction) = split(coefficient, exponent);
    let tail = |out: &mut Vec<u8>| {
        let (bits, exact) = truncate_to_double(coefficient, exponent);
        push_tail(out, negative, bits, (!exact).then(|| normalise(coefficient, exponent)));
    };
    match whole {
        Some(0) => {
            out.push(if negative { NEG_FRACTION } else { POS_FRACTION });
            tail(out);
        }
        Some(whole) => {
            push_integer_part(out, negative, (whole << 1) | u64::from(fraction));
            if fraction {
                tail(out);
            }
        }
        None => {
            out.push(if negative { NEG_LARGE } else { POS_LARGE });
            tail(out);
        }
    }
}

fn push_tail_only(out: &mut Vec<u8>, class: u8, negative: bool, bits: u64) {
    out.push(class);
    push_tail(out, negative, bits, None);
}

fn push_tail(out: &mut Vec<u8>, negative: bool, bits: u64, decimal: Option<(u16, u128)>) {
    let flip = if negative { 0xFF } else { 0 };
    let start = out.len();
    out.extend_from_slice(&bits.to_be_bytes());
    match decimal {
        None => out.push(0),
        Some((exponent, coefficient)) => {
            out.push(1);
            out.extend_from_slice(&exponent.to_be_bytes());
            out.extend_from_slice(&coefficient.to_be_bytes()[1..]);
        }
    }
    for byte in &mut out[start..] {
        *byte ^= flip;
    }
}

/// The integer part when it is below 2^63, and whether there is a fraction.
fn split(coefficient: u128, exponent: i32) -> (Option<u64>, bool) {
    let (whole, fraction) = match exponent {
        // 10^19 > 2^63
        19.. => return (None, false),
        0.. => (coefficient.checked_mul(10u128.pow(exponent as u32)), false),
        -34..0 => {
            let power = 10u128.pow(exponent.unsigned_abs());
            (Some(coefficient / power), !coefficient.is_multiple_of(power))
        }
        _ => (Some(0), true),
    };
    (whole.filter(|w| *w < 1 << 63).map(|w| w as u64), fraction)
}

/// The number as an `i64`: rounded half to even, clamped at both ends, NaN is 0 (what MongoDB hashes).
pub(super) fn decimal_to_i64(bytes: [u8; 16]) -> i64 {
    let (negative, coefficient, exponent) = match Decimal::from_bytes(bytes) {
        Decimal::NaN => return 0,
        Decimal::Infinity { negative } => return if negative { i64::MIN } else { i64::MAX },
        Decimal::Finite { negative, coefficient, exponent } => (negative, coefficient, exponent),
    };
    let size = match exponent {
        _ if coefficient == 0 => 0,
        19.. => u128::MAX,
        0.. => coefficient.saturating_mul(10u128.pow(exponent as u32)),
        -34..0 => {
            let power = 10u128.pow(exponent.unsigned_abs());
            let (whole, rest) = (coefficient / power, coefficient % power);
            let up = rest * 2 > power || (rest * 2 == power && whole % 2 == 1);
            whole + u128::from(up)
        }
        _ => 0,
    };
    if negative {
        if size > 1 << 63 { i64::MIN } else { (size as i128).wrapping_neg() as i64 }
    } else {
        i64::try_from(size).unwrap_or(i64::MAX)
    }
}

/// The integer part of a Decimal128, 0 where it has none or is out of range.
pub(super) fn decimal_to_i64_trunc(value: Value<'_>) -> i64 {
    let Value::Decimal(bytes) = value else { return 0 };
    let Decimal::Finite { negative, coefficient, exponent } = Decimal::from_bytes(bytes) else { return 0 };
    let whole = split(coefficient, exponent).0.unwrap_or(0) as i64;
    if negative { -whole } else { whole }
}

/// The integer that a double of the same value is hashed as: cut off, clamped, and 2^63 itself at the wrong end.
pub(super) fn decimal_as_double_integer(bytes: [u8; 16]) -> i64 {
    let Decimal::Finite { negative, coefficient, exponent } = Decimal::from_bytes(bytes) else {
        return decimal_to_i64(bytes);
    };
    match split(coefficient, exponent) {
        (Some(whole), _) => {
            if negative {
                -(whole as i64)
            } else {
                whole as i64
            }
        }
        _ if negative => i64::MIN,
        (None, fraction) => {
            let is_two_63 =
                exponent < 19 && !fraction && truncate_to_double(coefficient, exponent) == (TWO_63.to_bits(), true);
            if is_two_63 { i64::MIN } else { i64::MAX }
        }
    }
}

/// 34 digits and the exponent that goes with them, biased to be positive.
fn normalise(mut coefficient: u128, mut exponent: i32) -> (u16, u128) {
    while coefficient < MIN_NORMAL {
        coefficient *= 10;
        exponent -= 1;
    }
    ((exponent + 8192) as u16, coefficient)
}

/// The greatest double not above `coefficient × 10^exponent` as its bit pattern, and whether it is exact.
/// Too large values give the greatest finite double. The coefficient is not 0.
fn truncate_to_double(coefficient: u128, exponent: i32) -> (u64, bool) {
    let digits = coefficient.ilog10() as i32 + 1;
    if digits + exponent > 310 {
        return (f64::MAX.to_bits(), false);
    }
    if digits + exponent < -330 {
        return (0, false);
    }
    let mut n = Big::from(coefficient);
    let mut sticky = false;
    let mut shift = 0;
    if exponent >= 0 {
        n.mul_pow10(exponent as u32);
    } else {
        // Scale so that the quotient keeps at least 64 bits: 10^k has fewer than 3.33·k + 1 bits.
        let k = exponent.unsigned_abs();
        shift = k * 333 / 100 + 66;
        n.shl(shift);
        sticky = n.div_pow10(k);
    }
    let bits = n.bit_length();
    // n = mantissa × 2^drop; the value is n × 2^-shift.
    let top = bits as i32 - 1 - shift as i32;
    if top > 1023 {
        return (f64::MAX.to_bits(), false);
    }
    // The lowest bit a double has: 52 below the top one, but not below 2^-1074.
    let drop = (top - 52).max(-1074) + shift as i32;
    let (mantissa, rest) = n.shr(drop);
    let exact = !sticky && !rest;
    let pattern = if top < -1022 { mantissa } else { (((top + 1023) as u64) << 52) | (mantissa & ((1 << 52) - 1)) };
    (pattern, exact)
}

/// A natural number of at most 2560 bits, least significant limb first. Sizes are bounded by the callers:
/// 113 + 1030 bits for positive exponents, 113 + 1.11 × 3.33 × 364 for negative ones.
struct Big {
    limbs: [u32; 80],
}

impl From<u128> for Big {
    fn from(v: u128) -> Self {
        let mut limbs = [0; 80];
        for (i, limb) in limbs.iter_mut().take(4).enumerate() {
            *limb = (v >> (32 * i)) as u32;
        }
        Big { limbs }
    }
}

impl Big {
    fn mul_small(&mut self, by: u32) {
        let mut carry = 0u64;
        for limb in &mut self.limbs {
            let product = u64::from(*limb) * u64::from(by) + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
    }

    /// Returns whether there is a remainder.
    fn div_small(&mut self, by: u32) -> bool {
        let mut rest = 0u64;
        for limb in self.limbs.iter_mut().rev() {
            let n = (rest << 32) | u64::from(*limb);
            *limb = (n / u64::from(by)) as u32;
            rest = n % u64::from(by);
        }
        rest != 0
    }

    fn mul_pow10(&mut self, k: u32) {
        for _ in 0..k / 9 {
            self.mul_small(1_000_000_000);
        }
        self.mul_small(10u32.pow(k % 9));
    }

    /// Floors; returns whether there was a remainder.
    fn div_pow10(&mut self, k: u32) -> bool {
        let mut rest = false;
        for _ in 0..k / 9 {
            rest |= self.div_small(1_000_000_000);
        }
        self.div_small(10u32.pow(k % 9)) | rest
    }

    fn shl(&mut self, by: u32) {
        let (limbs, bits) = ((by / 32) as usize, by % 32);
        for i in (0..self.limbs.len()).rev() {
            let high = i.checked_sub(limbs).map_or(0, |j| self.limbs[j]);
            let low = i.checked_sub(limbs + 1).map_or(0, |j| self.limbs[j]);
            let pair = (u64::from(high) << 32) | u64::from(low);
            self.limbs[i] = (pair >> (32 - bits)) as u32;
        }
    }

    /// The number shifted right by `by` (left if negative) as a `u64`, and whether bits that are not 0 fell off.
    fn shr(&self, by: i32) -> (u64, bool) {
        let bit = |i: i32| {
            let limb = usize::try_from(i).ok().and_then(|i| self.limbs.get(i / 32)).copied().unwrap_or(0);
            u64::from(limb >> (i.rem_euclid(32)) & 1)
        };
        let value = (0..64).fold(0, |sum, i| sum | bit(by + i) << i);
        (value, (0..by).any(|i| bit(i) != 0))
    }

    fn bit_length(&self) -> u32 {
        let top = self.limbs.iter().rposition(|l| *l != 0);
        top.map_or(0, |i| 32 * (i as u32 + 1) - self.limbs[i].leading_zeros())
    }
}

/// Length of the number encoding at the start of `bytes`, `None` if it is cut short or none.
pub(super) fn encoded_len(bytes: &[u8]) -> Option<usize> {
    let class = *bytes.first()?;
    let tail = |at: usize, flip: u8| Some(at + 9 + if bytes.get(at + 8)? ^ flip == 1 { 17 } else { 0 });
    match class {
        NAN | NEG_INFINITY | ZERO | POS_INFINITY => Some(1),
        NEG_LARGE | NEG_FRACTION => tail(1, 0xFF),
        POS_LARGE | POS_FRACTION => tail(1, 0),
        _ => {
            let (length, flip) = if class < ZERO { (NEG_INT - class, 0xFF) } else { (class - POS_INT, 0) };
            let end = 1 + usize::from(length);
            let last = bytes.get(end - 1)? ^ flip;
            if last & 1 == 1 { tail(end, flip) } else { Some(end) }
        }
    }
}
