//! What a regular expression says about the beginning of the strings that it matches.

/// The literal text that every match starts with, or `None` if nothing is known. Only patterns anchored at the start
/// without alternatives count, and only under options that do not change what a literal or an anchor means.
pub(super) fn prefix(pattern: &[u8], options: &[u8]) -> Option<Vec<u8>> {
    // "s" only changes what a dot matches.
    if options.iter().any(|o| *o != b's') || pattern.contains(&b'|') {
        return None;
    }
    let mut rest = pattern.strip_prefix(b"^").or_else(|| pattern.strip_prefix(b"\\A"))?;
    let mut text: Vec<u8> = Vec::new();
    while let Some((&c, after)) = rest.split_first() {
        match c {
            b'\\' => match after.split_first() {
                // A backslash takes the meaning from punctuation and gives one to letters, digits and beyond.
                Some((&escaped, after)) if escaped.is_ascii_punctuation() => {
                    text.push(escaped);
                    rest = after;
                    continue;
                }
                _ => break,
            },
            // The last character may be absent.
            b'*' | b'?' | b'{' => {
                while text.pop().is_some_and(|b| b & 0xC0 == 0x80) {}
                break;
            }
            b'+' | b'.' | b'[' | b'(' | b')' | b'$' | b'^' => break,
            _ => {
                text.push(c);
                rest = after;
            }
        }
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::prefix;

    #[test]
    fn prefixes() {
        let p = |pattern: &str| prefix(pattern.as_bytes(), b"").map(|b| String::from_utf8_lossy(&b).into_owned());
        for (pattern, expected) in [
            ("^abc", Some("abc")),
            ("\\Aabc", Some("abc")),
            ("^abc.*x", Some("abc")),
            ("^abc$", Some("abc")),
            ("^ab+", Some("ab")),
            ("^abc*", Some("ab")),
            ("^abc?d", Some("ab")),
            ("^abc{0,2}", Some("ab")),
            ("^a\\.b\\/", Some("a.b/")),
            ("^a\\d", Some("a")),
            ("^a\\Qb", Some("a")),
            ("^é?x", None),
            ("^xé*", Some("x")),
            ("^a b", Some("a b")),
            ("^a(?i)b", Some("a")),
            ("abc", None),
            ("^", None),
            ("^a|b", None),
            ("^[ab]", None),
            ("(^a)", None),
            ("^*a", None),
            ("", None),
            ("\\", None),
            ("^a\\", Some("a")),
        ] {
            assert_eq!(p(pattern).as_deref(), expected, "{pattern}");
        }
        for options in ["i", "m", "x", "si", "u"] {
            assert_eq!(prefix(b"^abc", options.as_bytes()), None);
        }
        assert_eq!(prefix(b"^abc", b"s"), Some(b"abc".to_vec()));
    }
}
