//! The key file: the secret that members of a deployment share.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Keys in one file: the one that goes and the one that comes.
const MOST_KEYS: usize = 2;

/// The keys in a key file: one, or a YAML list of them while a new key takes an old one's place. White space is no part
/// of a key.
pub fn keys_of(content: &str) -> Vec<String> {
    let key = |text: &str| text.chars().filter(|c| !c.is_whitespace() && *c != '"' && *c != '\'').collect::<String>();
    let is_list = content.lines().any(|l| l.trim_start().starts_with("- "));
    let keys = if is_list {
        content.split("\n-").map(|part| key(part.trim_start().trim_start_matches('-'))).collect()
    } else {
        vec![key(content)]
    };
    keys.into_iter().filter(|k| !k.is_empty()).collect()
}

/// Checks a key file, whose keys are those of user `__system` of `local`.
///
/// # Errors
/// A file that cannot be read, that others than its owner may read, that has more than two keys, or a key that is not
/// 6 to 1,024 characters out of base64's alphabet. The message names the file.
pub fn check(path: &Path) -> Result<(), String> {
    let file = path.display();
    let meta = std::fs::metadata(path).map_err(|e| format!("cannot read the key file {file}: {e}"))?;
    if !meta.is_file() {
        return Err(format!("the key file {file} is not a file"));
    }
    let mode = meta.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(format!(
            "permissions on {file} are too open ({:03o}): only its owner may have access (chmod 400 {file})",
            mode & 0o777
        ));
    }
    // Far above the longest key with white space between all its characters.
    if meta.len() > 65_536 {
        return Err(format!("the key file {file} is longer than any key"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read the key file {file}: {e}"))?;
    let keys = keys_of(&text);
    if keys.len() > MOST_KEYS {
        return Err(format!("the key file {file} has {} keys; servers take {MOST_KEYS} at most", keys.len()));
    }
    if keys.is_empty() {
        return Err(format!("the key file {file} has no key"));
    }
    for key in keys {
        if let Some(bad) = key.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '='))) {
            return Err(format!("the key file {file} has the character {bad:?}, which is not in base64"));
        }
        if !(6..=1024).contains(&key.len()) {
            return Err(format!("a key in {file} has {} characters; it must have 6 to 1024", key.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::fs::Permissions;

    use super::*;

    fn write(content: &[u8], mode: u32) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        check(&path)
    }

    #[test]
    fn white_space_is_no_part_of_the_key() {
        assert_eq!(keys_of("abc d\nef+/=\n"), ["abcdef+/="]);
        assert_eq!(keys_of("- \"key one\"\n- keytwo\n"), ["keyone", "keytwo"]);
        assert_eq!(keys_of("ab+/-=\n"), ["ab+/-="]);
        assert!(keys_of(" \n").is_empty());
        write(b"abc d\nef+/=\n", 0o400).unwrap();
        write(b"abcdef", 0o600).unwrap();
    }

    #[test]
    fn two_keys_take_turns() {
        write(b"- abcdef1\n- \"abcdef2\"\n", 0o400).unwrap();
    }

    #[test]
    fn bad_files_are_refused() {
        for (content, mode, text) in [
            (&b"abcdef"[..], 0o440, "too open (440)"),
            (b"abcdef", 0o604, "too open (604)"),
            (b"abc", 0o400, "has 3 characters"),
            (b"", 0o400, "has no key"),
            (b"- abcdef1\n- ab\n", 0o400, "has 2 characters"),
            (b"- abcdef1\n- abcdef2\n- abcdef3\n", 0o400, "has 3 keys"),
            (&[b'a'; 1025], 0o400, "has 1025 characters"),
            (b"abc!def", 0o400, "'!'"),
            (b"abc\xffdef", 0o400, "cannot read"),
            (&[b'\n'; 70_000], 0o400, "longer than any key"),
        ] {
            let error = write(content, mode).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        assert!(check(Path::new("/nonexistent/key")).unwrap_err().contains("/nonexistent/key"));
        assert!(check(Path::new("/")).unwrap_err().contains("not a file"));
    }
}
