//! The key file: the secret that members of a deployment share.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Reads the key: the file's content without white space, as mongod uses it (user `__system` of `local`).
///
/// # Errors
/// A file that cannot be read, that others than its owner may read, or whose content is not 6 to 1,024 characters out
/// of base64's alphabet. The message names the file.
pub fn load(path: &Path) -> Result<String, String> {
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
    let key: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    if let Some(bad) = key.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '='))) {
        return Err(format!("the key file {file} has the character {bad:?}, which is not in base64"));
    }
    if !(6..=1024).contains(&key.len()) {
        return Err(format!("the key in {file} has {} characters; it must have 6 to 1024", key.len()));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::fs::Permissions;

    use super::*;

    fn write(content: &[u8], mode: u32) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        load(&path)
    }

    #[test]
    fn white_space_is_no_part_of_the_key() {
        assert_eq!(write(b"abc d\nef+/=\n", 0o400).unwrap(), "abcdef+/=");
        assert_eq!(write(b"abcdef", 0o600).unwrap(), "abcdef");
    }

    #[test]
    fn bad_files_are_refused() {
        for (content, mode, text) in [
            (&b"abcdef"[..], 0o440, "too open (440)"),
            (b"abcdef", 0o604, "too open (604)"),
            (b"abc", 0o400, "has 3 characters"),
            (b"", 0o400, "has 0 characters"),
            (&[b'a'; 1025], 0o400, "has 1025 characters"),
            (b"abc!def", 0o400, "'!'"),
            (b"abc\xffdef", 0o400, "cannot read"),
            (&[b'\n'; 70_000], 0o400, "longer than any key"),
        ] {
            let error = write(content, mode).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        assert!(load(Path::new("/nonexistent/key")).unwrap_err().contains("/nonexistent/key"));
        assert!(load(Path::new("/")).unwrap_err().contains("not a file"));
    }
}
