//! The PROXY protocol, versions 1 and 2: how a load balancer tells whom it speaks for (haproxy's proxy-protocol.txt).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How version 2 begins.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before the addresses.
const FIXED: usize = 16;
/// The longest line of version 1, its end included.
const MAX_LINE: usize = 107;
/// More than any header of version 2 with its extensions needs; the field itself goes to 65,535.
const MAX_EXTENT: usize = 4096;

/// What the first bytes of a connection say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// The header is not whole; this many bytes at least are missing.
    More(usize),
    /// A header of `length` bytes, on behalf of `source`; `None` where the balancer speaks for itself.
    Header { length: usize, source: Option<SocketAddr> },
    /// It is no such header.
    Invalid,
}

/// Reads the header at the start of a connection.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    if bytes.is_empty() {
        return Parsed::More(1);
    }
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] == SIGNATURE[..known] {
        return if bytes.len() < FIXED { Parsed::More(FIXED - bytes.len()) } else { version_2(bytes) };
    }
    let known = bytes.len().min(6);
    if bytes[..known] == b"PROXY "[..known] { version_1(bytes) } else { Parsed::Invalid }
}

fn version_2(bytes: &[u8]) -> Parsed {
    let extent = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    if bytes[12] >> 4 != 2 || extent > MAX_EXTENT {
        return Parsed::Invalid;
    }
    let length = FIXED + extent;
    let Some(addresses) = bytes.get(FIXED..length) else { return Parsed::More(length - bytes.len()) };
    let source = match (bytes[12] & 0xf, bytes[13] >> 4) {
        (0, _) => None,
        (1, 1) => match addresses.first_chunk::<12>() {
            Some([a, b, c, d, _, _, _, _, high, low, ..]) => {
                Some((IpAddr::from(Ipv4Addr::new(*a, *b, *c, *d)), u16::from_be_bytes([*high, *low])).into())
            }
            None => return Parsed::Invalid,
        },
        (1, 2) => match (addresses.first_chunk::<16>(), addresses.get(32..36)) {
            (Some(ip), Some(ports)) => {
                Some((IpAddr::from(Ipv6Addr::from(*ip)), u16::from_be_bytes([ports[0], ports[1]])).into())
            }
            _ => return Parsed::Invalid,
        },
        // Unspecified, or a local socket: no address to tell.
        (1, _) => None,
        _ => return Parsed::Invalid,
    };
    Parsed::Header { length, source }
}

fn version_1(bytes: &[u8]) -> Parsed {
    let Some(end) = bytes.windows(2).take(MAX_LINE - 1).position(|w| w == b"\r\n") else {
        return if bytes.len() < MAX_LINE { Parsed::More(1) } else { Parsed::Invalid };
    };
    let Ok(line) = std::str::from_utf8(&bytes[..end]) else { return Parsed::Invalid };
    let words: Vec<&str> = line.split(' ').collect();
    let source = match words[..] {
        ["PROXY", "UNKNOWN", ..] => None,
        ["PROXY", "TCP4" | "TCP6", from, _, port, _] => match (from.parse::<IpAddr>(), port.parse()) {
            (Ok(ip), Ok(port)) => Some((ip, port).into()),
            _ => return Parsed::Invalid,
        },
        _ => return Parsed::Invalid,
    };
    Parsed::Header { length: end + 2, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn v2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend_from_slice(&[0x20 | command, family]);
        bytes.extend_from_slice(&(addresses.len() as u16).to_be_bytes());
        bytes.extend_from_slice(addresses);
        bytes
    }

    #[test]
    fn headers_of_both_versions_are_read_and_awaited() {
        let v4 = v2(1, 0x11, &[10, 0, 0, 1, 10, 0, 0, 2, 0x1f, 0x90, 0x69, 0x89]);
        let mut six = [0; 36];
        six[15] = 1;
        six[32..34].copy_from_slice(&8081_u16.to_be_bytes());
        let v6 = v2(1, 0x21, &six);
        let mut extended = v2(1, 0x11, &[10, 0, 0, 1, 10, 0, 0, 2, 0x1f, 0x90, 0x69, 0x89, 4, 0, 1, 9]);
        let cases: Vec<(Vec<u8>, Option<&str>)> = vec![
            (v4, Some("10.0.0.1:8080")),
            (v6, Some("[::1]:8081")),
            (std::mem::take(&mut extended), Some("10.0.0.1:8080")),
            (v2(0, 0, &[]), None),
            (v2(1, 0x31, &[0; 216]), None),
            (b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n".to_vec(), Some("192.168.0.1:56324")),
            (b"PROXY TCP6 ::1 ::2 5 6\r\n".to_vec(), Some("[::1]:5")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN what ever\r\n".to_vec(), None),
        ];
        for (bytes, source) in cases {
            let wanted = Parsed::Header { length: bytes.len(), source: source.map(|s| s.parse().unwrap()) };
            assert_eq!(parse(&bytes), wanted);
            for end in 0..bytes.len() {
                let Parsed::More(missing) = parse(&bytes[..end]) else { panic!("{end} of {bytes:?}") };
                assert!(missing >= 1 && end + missing <= bytes.len(), "{end} of {bytes:?}");
            }
            let more = [&bytes[..], b"more"].concat();
            assert_eq!(parse(&more), wanted, "what follows is left alone");
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let mut version = v2(1, 0x11, &[0; 12]);
        version[12] = 0x31;
        let mut vast = v2(1, 0x11, &[0; 12]);
        vast[14] = 0xff;
        for bytes in [
            b"\x10\0\0\0".to_vec(),
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4\r\n".to_vec(),
            b"PROXY TCP4 x y 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 99999 2\r\n".to_vec(),
            [b"PROXY ", &[b'a'; 120][..]].concat(),
            v2(2, 0x11, &[0; 12]),
            v2(1, 0x11, &[0; 11]),
            v2(1, 0x21, &[0; 35]),
            version,
            vast,
        ] {
            assert_eq!(parse(&bytes), Parsed::Invalid, "{bytes:?}");
        }
    }
}
