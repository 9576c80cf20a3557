#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bson::{RawDocumentBuf, rawdoc};
use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::wire::{OutMsg, OutSequence, error_reply, reply};

const PING: u32 = 0;

fn ping() -> RawDocumentBuf {
    rawdoc! { "ping": 1, "$db": "admin" }
}

fn insert() -> RawDocumentBuf {
    rawdoc! { "insert": "x", "$db": "t" }
}

fn frame(op_code: i32, payload: &[u8]) -> Bytes {
    let header = Header { length: (payload.len() + HEADER_LEN) as i32, request_id: 7, response_to: 0, op_code };
    Bytes::from([&header.to_bytes()[..], payload].concat())
}

fn kind0(doc: &[u8]) -> Vec<u8> {
    [&[0], doc].concat()
}

fn kind1(name: &[u8], docs: &[u8]) -> Vec<u8> {
    kind1_sized((name.len() + docs.len() + 5) as i32, name, docs)
}

fn kind1_sized(size: i32, name: &[u8], docs: &[u8]) -> Vec<u8> {
    [&[1], &size.to_le_bytes()[..], name, &[0], docs].concat()
}

fn msg(flags: u32, sections: &[Vec<u8>]) -> Bytes {
    frame(2013, &[&flags.to_le_bytes()[..], &sections.concat()].concat())
}

fn with_checksum(flags: u32, sections: &[Vec<u8>]) -> Bytes {
    let payload = [&(flags | 1).to_le_bytes()[..], &sections.concat()].concat();
    let mut whole = frame(2013, &[&payload[..], &[0; 4]].concat()).to_vec();
    let end = whole.len() - 4;
    let crc = crc32c::crc32c(&whole[..end]);
    whole[end..].copy_from_slice(&crc.to_le_bytes());
    whole.into()
}

fn query(doc: &[u8], namespace: &str, flags: i32, wanted: i32) -> Bytes {
    let mut payload = flags.to_le_bytes().to_vec();
    payload.extend_from_slice(namespace.as_bytes());
    payload.push(0);
    payload.put_i32_le(0);
    payload.put_i32_le(wanted);
    payload.extend_from_slice(doc);
    frame(2004, &payload)
}

/// The code of the error that answers the frame; 0 where it is fine, -1 where the connection is closed.
fn verdict(frame: &Bytes) -> i32 {
    match decode(frame.clone()) {
        Ok(_) => 0,
        Err(Malformed::Close(_)) => -1,
        Err(Malformed::Reply { request_id, error, .. }) => {
            assert_eq!(request_id, 7);
            error.code()
        }
    }
}

// What a 6.0.5 server did with each of these frames, put to it over a raw socket.
#[test]
fn frames_are_judged_as_a_server_judges_them() {
    let ping = || kind0(ping().as_bytes());
    let insert = || kind0(insert().as_bytes());
    let one = rawdoc! { "a": 1 };
    let docs = || kind1(b"documents", one.as_bytes());
    let mut unterminated = ping();
    *unterminated.last_mut().unwrap() = 1;
    let inner_length = rawdoc! { "ping": 1, "x": { "a": 1 } }.into_bytes();
    let mut inner_bad = inner_length.clone();
    let at = bsonx::find(&inner_bad, "x").unwrap().value;
    inner_bad[at] = 0x7f;
    let cases: &[(&str, Bytes, i32)] = &[
        ("a command", msg(PING, &[ping()]), 0),
        ("exhaustAllowed", msg(1 << 16, &[ping()]), 0),
        ("an unknown flag that may be ignored", msg(1 << 17, &[ping()]), 0),
        ("an unknown flag that may not", msg(1 << 2, &[ping()]), -1),
        ("another", msg(1 << 15, &[ping()]), -1),
        ("a right checksum", with_checksum(0, &[ping()]), 0),
        ("a wrong checksum", msg(1, &[ping(), vec![1, 0, 0, 0]]), -1),
        ("a checksum without room", msg(1, &[vec![1, 2]]), 51252),
        ("no section", msg(0, &[]), 40587),
        ("two bodies", msg(0, &[ping(), ping()]), 40430),
        ("a security token", msg(0, &[ping(), vec![2, 1, 2]]), 13),
        ("an unknown kind", msg(0, &[ping(), vec![5]]), 40432),
        ("a zero byte after the body", msg(0, &[ping(), vec![0]]), 40430),
        ("only a sequence", msg(0, &[docs()]), 40587),
        ("a sequence", msg(0, &[insert(), docs()]), 0),
        ("a sequence before the body", msg(0, &[docs(), insert()]), 0),
        ("an empty sequence", msg(0, &[insert(), kind1(b"documents", b"")]), 0),
        ("a sequence that a command does not know", msg(0, &[ping(), kind1(b"foo", one.as_bytes())]), 0),
        ("a sequence without a name", msg(0, &[ping(), kind1(b"", one.as_bytes())]), 0),
        ("a sequence twice", msg(0, &[insert(), docs(), docs()]), 40431),
        (
            "a sequence and a field of one name",
            msg(0, &[kind0(rawdoc! { "insert": "x", "documents": [], "$db": "t" }.as_bytes()), docs()]),
            40433,
        ),
        ("garbage in a sequence", msg(0, &[insert(), kind1(b"documents", b"\xff\xff\xff\x7fabc")]), 22),
        ("a tiny document in a sequence", msg(0, &[insert(), kind1(b"documents", b"\x04\0\0\0")]), 22),
        ("a sequence beyond the message", msg(0, &[ping(), kind1_sized(1000, b"d", one.as_bytes())]), 15),
        ("a sequence of negative size", msg(0, &[ping(), kind1_sized(-1, b"d", one.as_bytes())]), 15),
        ("a sequence of size 3", msg(0, &[ping(), kind1_sized(3, b"d", one.as_bytes())]), 15),
        ("a sequence whose name does not end", msg(0, &[ping(), b"\x01\x08\0\0\0docu".to_vec()]), 15),
        ("a body that is cut off", msg(0, &[ping()[..20].to_vec()]), 22),
        ("a body of length 4", msg(0, &[kind0(b"\x04\0\0\0\0")]), 22),
        ("a body of negative length", msg(0, &[kind0(b"\xff\xff\xff\xff\0")]), 22),
        ("a body without its end", msg(0, &[unterminated]), 22),
        ("a nested document of wrong length", msg(0, &[kind0(&inner_bad)]), 22),
        ("no flags", frame(2013, b""), -1),
        ("half the flags", frame(2013, b"\0\0"), -1),
        ("an old insert", frame(2002, &[0; 20]), -1),
        ("an old update", frame(2001, &[0; 20]), -1),
        ("an old getMore", frame(2005, &[0; 20]), 5_739_101),
        ("an old delete", frame(2006, &[0; 20]), -1),
        ("an old killCursors", frame(2007, &[0; 20]), -1),
        ("a reply", frame(1, &[0; 20]), -1),
        ("a compressed message without anything", frame(2012, &[0; 20]), -1),
        ("an unknown op code", frame(9999, &[0; 20]), -1),
    ];
    for (what, frame, wanted) in cases {
        assert_eq!(verdict(frame), *wanted, "{what}");
    }
    let mut claims = msg(0, &[ping()]).to_vec();
    claims[8] = 5;
    assert_eq!(verdict(&claims.into()), -1, "a request that says it is a reply");
}

#[test]
fn old_queries_are_judged_as_a_server_judges_them() {
    let hello = rawdoc! { "hello": 1 }.into_bytes();
    let cmd = "admin.$cmd";
    let cases: &[(&str, Bytes, i32)] = &[
        ("hello", query(&hello, cmd, 4, -1), 0),
        ("hello on another database", query(&hello, "test.$cmd", 4, 1), 0),
        ("isMaster", query(rawdoc! { "isMaster": 1 }.as_bytes(), cmd, 4, -1), 0),
        ("ismaster", query(rawdoc! { "ismaster": 1 }.as_bytes(), cmd, 4, -1), 0),
        ("ISMASTER", query(rawdoc! { "ISMASTER": 1 }.as_bytes(), cmd, 4, -1), 352),
        ("ping", query(rawdoc! { "ping": 1 }.as_bytes(), cmd, 4, -1), 352),
        ("nothing", query(rawdoc! {}.as_bytes(), cmd, 4, -1), 352),
        ("a real query", query(&hello, "test.coll", 4, -1), 5_739_101),
        ("for 0 documents", query(&hello, cmd, 4, 0), 16979),
        ("for 2 documents", query(&hello, cmd, 4, 2), 16979),
        ("exhaust", query(&hello, cmd, 64, -1), 18527),
        ("$db", query(rawdoc! { "hello": 1, "$db": "x" }.as_bytes(), cmd, 4, -1), 40621),
        ("a projection", query(&[&hello[..], &hello].concat(), cmd, 4, -1), 0),
        ("bytes left over", query(&[&hello[..], b"zz"].concat(), cmd, 4, -1), 22),
        ("a query that is cut off", query(b"\xff\0\0\0\0\0", cmd, 4, -1), 22),
        ("no end of the namespace", frame(2004, b"\0\0\0\0admin.$cmd"), -1),
    ];
    for (what, frame, wanted) in cases {
        assert_eq!(verdict(frame), *wanted, "{what}");
    }
}

#[test]
fn an_old_hello_becomes_a_message_and_is_answered_in_kind() {
    for doc in
        [rawdoc! { "$query": { "isMaster": 1 }, "$readPreference": { "mode": "secondary" } }, rawdoc! { "isMaster": 1 }]
    {
        let message = decode(query(doc.as_bytes(), "admin.$cmd", 4, -1)).unwrap();
        assert_eq!(message.document().to_owned(), rawdoc! { "isMaster": 1, "$db": "admin" });
        assert!(message.legacy);
        let mut out = BytesMut::new();
        let body = rawdoc! { "ok": 1.0 };
        reply(9, message.request_id, body.as_bytes(), ReplyStyle::for_request(&message), &mut out);
        let header = Header::parse(&out).unwrap();
        assert_eq!((header.length as usize, header.response_to, header.op_code), (out.len(), 7, 1));
        assert_eq!(int32(&out, 16), Some(8));
        assert_eq!(int32(&out, 32), Some(1));
        assert_eq!(&out[36..], body.as_bytes());
    }
    let Err(Malformed::Reply { style, error, .. }) = decode(frame(2005, &[0; 20])) else { panic!() };
    let mut out = BytesMut::new();
    reply(1, 7, &error_reply(&error, style.form), style, &mut out);
    assert_eq!(int32(&out, 16), Some(2));
    let doc = bsonx::view(&out[36..]);
    assert_eq!(bsonx::int(doc, "code"), Some(5_739_101));
    assert!(bsonx::str(doc, "$err").is_some());
}

#[test]
fn sizes_are_limited() {
    let big = |len: usize| {
        let mut doc = bsonx::Writer::with_capacity(len);
        doc.str("a", &"z".repeat(len - 13));
        let doc = doc.finish();
        assert_eq!(doc.len(), len);
        doc
    };
    let body = kind0(insert().as_bytes());
    let fits = big(MAX_BSON_INTERNAL);
    let over = big(MAX_BSON_INTERNAL + 1);
    assert_eq!(verdict(&msg(0, &[body.clone(), kind1(b"documents", &fits)])), 0);
    assert_eq!(verdict(&msg(0, &[body, kind1(b"documents", &over)])), 10334);
    assert_eq!(verdict(&msg(0, &[kind0(&over)])), 10334);
    assert_eq!(verdict(&frame(2013, &vec![0; MAX_MESSAGE])), -1);
}

#[test]
fn documents_come_from_sequence_or_array_alike() {
    let docs = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2, "x": "y" }];
    let joined: Vec<u8> = docs.iter().flat_map(|d| d.as_bytes().to_vec()).collect();
    let sequence = decode(msg(0, &[kind0(insert().as_bytes()), kind1(b"documents", &joined)])).unwrap();
    let array = rawdoc! { "insert": "x", "documents": [docs[0].clone(), docs[1].clone()], "$db": "t" };
    let array = decode(msg(0, &[kind0(array.as_bytes())])).unwrap();
    for message in [sequence, array] {
        assert_eq!(message.command(), Some("insert"));
        assert_eq!(message.document_count("documents"), Some(2));
        let read: Vec<_> = message.documents("documents").map(|d| d.unwrap().to_owned()).collect();
        assert_eq!(read, docs);
        assert_eq!(message.document_count("updates"), None);
        assert_eq!(message.documents("updates").count(), 0);
    }
    let wrong = decode(msg(0, &[kind0(rawdoc! { "insert": "x", "documents": [1] }.as_bytes())])).unwrap();
    assert!(wrong.documents("documents").next().unwrap().unwrap_err().is(Code::TypeMismatch));
}

#[test]
fn a_third_sequence_closes_the_connection() {
    let sequences = |n: usize| {
        let mut sections = vec![kind0(insert().as_bytes())];
        sections.extend((0..n).map(|i| kind1(format!("x{i}").as_bytes(), &[])));
        verdict(&msg(0, &sections))
    };
    assert_eq!(sequences(2), 0);
    let started = std::time::Instant::now();
    for many in [3, 100_000] {
        assert_eq!(sequences(many), -1);
    }
    assert!(started.elapsed().as_secs() < 5);
}

#[test]
fn compressors_that_are_off_close_the_connection() {
    let plain = [&[0; 4][..], &kind0(ping().as_bytes())].concat();
    for compressor in Compressor::OFFERED.into_iter().chain([Compressor::Noop]) {
        let mut out = BytesMut::from(&frame(2013, &plain)[..]);
        compress::wrap(compressor, &mut out, 0);
        let (frame, others) = (out.freeze(), Compressor::OFFERED.into_iter().filter(|c| *c != compressor));
        let others: Vec<_> = others.collect();
        assert!(decode_accepting(frame.clone(), Accepted::only(&[compressor])).is_ok());
        assert!(matches!(decode_accepting(frame, Accepted::only(&others)), Err(Malformed::Close(_))));
    }
}

#[test]
fn large_messages_survive_every_compressor() {
    // Around the steps in which a buffer grows, of content that compresses well and not at all.
    for size in [0, 1, 65_536, 261_900, 262_143, 262_144, 262_145, 524_288, 524_289, 1_048_577, 5_000_000] {
        let mut seed = 9_u64;
        let noise = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        });
        for bytes in [vec![0; size], noise.take(size).collect()] {
            let doc = rawdoc! {"ping": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes }, "$db": "a"};
            let plain = frame(2013, &[&[0; 4][..], &kind0(doc.as_bytes())].concat());
            for compressor in Compressor::OFFERED {
                let mut out = BytesMut::from(&plain[..]);
                compress::wrap(compressor, &mut out, 0);
                let message = decode(out.freeze());
                assert!(message.is_ok_and(|m| m.body == doc.as_bytes()), "{compressor:?}, {size} bytes");
            }
        }
    }
}

#[test]
fn replies_answer_checksum_and_compressor_in_kind() {
    let request = decode(with_checksum(0, &[kind0(ping().as_bytes())])).unwrap();
    for compressor in [None, Some(Compressor::Zlib)] {
        let style = ReplyStyle { compressor, ..ReplyStyle::for_request(&request) };
        let mut out = BytesMut::new();
        reply(5, request.request_id, rawdoc! { "ok": 1.0 }.as_bytes(), style, &mut out);
        let reply = decode_reply(out.clone().freeze()).unwrap();
        assert!(reply.flags.has(Flags::CHECKSUM_PRESENT));
        assert_eq!((reply.response_to, reply.compressor), (7, compressor));
        if compressor.is_none() {
            out[25] ^= 1;
            assert!(decode_reply(out.freeze()).is_err());
        }
    }
}

#[test]
fn lies_about_compressed_sizes_close_the_connection() {
    let plain = [&[0; 4][..], &kind0(ping().as_bytes())].concat();
    for compressor in Compressor::OFFERED.into_iter().chain([Compressor::Noop]) {
        let mut out = BytesMut::from(&frame(2013, &plain)[..]);
        compress::wrap(compressor, &mut out, 0);
        let good = out.freeze();
        assert_eq!(Header::parse(&good).unwrap().op_code, 2012);
        assert_eq!(verdict(&good), 0, "{compressor:?}");
        for size in [0, plain.len() as i32 - 1, plain.len() as i32 + 1, -1, 48_000_000, 47_999_984, i32::MAX] {
            let mut bad = good.to_vec();
            bad[20..24].copy_from_slice(&size.to_le_bytes());
            assert_eq!(verdict(&bad.into()), -1, "{compressor:?} {size}");
        }
        for end in 16..good.len() {
            let mut cut = good[..end].to_vec();
            cut[..4].copy_from_slice(&(end as i32).to_le_bytes());
            assert_eq!(verdict(&cut.into()), -1, "{compressor:?} {end}");
        }
        let mut unknown = good.to_vec();
        unknown[24] = 9;
        assert_eq!(verdict(&unknown.into()), -1);
    }
}

#[test]
fn truncated_messages_are_refused_at_every_byte() {
    let sequence = kind1(b"documents", rawdoc! { "_id": 1 }.as_bytes());
    for whole in [
        msg(0, &[kind0(insert().as_bytes()), sequence.clone()]),
        with_checksum(0, &[kind0(insert().as_bytes()), sequence]),
    ] {
        assert_eq!(verdict(&whole), 0);
        let end_of_body = HEADER_LEN + 5 + insert().as_bytes().len();
        for end in 0..whole.len() {
            assert_eq!(verdict(&whole.slice(..end)), -1, "{end}: the header tells");
            if end >= HEADER_LEN {
                let mut cut = whole[..end].to_vec();
                cut[..4].copy_from_slice(&(end as i32).to_le_bytes());
                let whole_again = end == end_of_body && whole[HEADER_LEN] == 0;
                assert_eq!(verdict(&cut.into()) == 0, whole_again, "{end}");
            }
        }
    }
}

fn any_doc() -> impl Strategy<Value = RawDocumentBuf> {
    let value = prop_oneof![
        any::<i32>().prop_map(bson::Bson::Int32),
        any::<i64>().prop_map(bson::Bson::Int64),
        ".{0,12}".prop_map(bson::Bson::String),
        Just(bson::Bson::Null),
    ];
    let value = value.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(bson::Bson::Array),
            proptest::collection::vec(("[a-z]{0,6}", inner), 0..4)
                .prop_map(|fields| bson::Bson::Document(fields.into_iter().collect())),
        ]
    });
    proptest::collection::vec(("[a-z$.]{1,8}", value), 0..5).prop_map(|fields| {
        let doc: bson::Document = fields.into_iter().collect();
        RawDocumentBuf::try_from(&doc).unwrap()
    })
}

fn any_out() -> impl Strategy<Value = OutMsg> {
    let sequence = (prop_oneof![Just("documents"), Just("q1"), Just("ü")], proptest::collection::vec(any_doc(), 0..5));
    (any_doc(), proptest::collection::vec(sequence, 0..2), any::<bool>()).prop_map(|(body, sequences, quiet)| OutMsg {
        flags: if quiet { Flags::MORE_TO_COME } else { Flags::NONE },
        body: body.into_bytes().into(),
        sequences: sequences
            .into_iter()
            .map(|(id, docs)| OutSequence {
                id: Cow::Borrowed(id),
                docs: docs.into_iter().map(|d| Bytes::from(d.into_bytes())).collect(),
            })
            .collect(),
    })
}

proptest! {
    #[test]
    fn messages_survive_the_wire(out in any_out(), id in any::<i32>(), which in 0_usize..5) {
        let compressor = [None, Some(Compressor::Noop), Some(Compressor::Snappy), Some(Compressor::Zlib), Some(Compressor::Zstd)][which];
        let mut bytes = BytesMut::new();
        match compressor {
            None => out.encode(id, &mut bytes),
            Some(compressor) => out.encode_compressed(id, compressor, &mut bytes),
        }
        if compressor.is_none() {
            prop_assert_eq!(bytes.len(), out.encoded_len());
        }
        let unique = out.sequences.iter().all(|s| bsonx::find(&out.body, &s.id).is_none());
        prop_assume!(unique);
        let message = decode(bytes.freeze()).unwrap();
        prop_assert_eq!((message.request_id, message.compressor), (id, compressor));
        prop_assert_eq!(&message.body, &out.body);
        prop_assert_eq!(message.unacknowledged(), out.unacknowledged());
        prop_assert_eq!(message.sequences.len(), out.sequences.len());
        for (read, sent) in message.sequences.iter().zip(&out.sequences) {
            prop_assert_eq!(&read.id, &sent.id);
            prop_assert_eq!(&read.docs[..], &sent.docs.concat()[..]);
            prop_assert_eq!(read.count, sent.docs.len());
        }
        let mut again = BytesMut::new();
        OutMsg::forward(&message).encode(id, &mut again);
        let mut first = BytesMut::new();
        out.encode(id, &mut first);
        prop_assert_eq!(again, first);
    }

    #[test]
    fn damaged_messages_never_panic(out in any_out(), flips in proptest::collection::vec((any::<prop::sample::Index>(), 0_u8..8), 1..4), cut in any::<prop::sample::Index>(), which in 0_usize..5) {
        let mut bytes = BytesMut::new();
        match [None, Some(Compressor::Noop), Some(Compressor::Snappy), Some(Compressor::Zlib), Some(Compressor::Zstd)][which] {
            None => out.encode(7, &mut bytes),
            Some(compressor) => out.encode_compressed(7, compressor, &mut bytes),
        }
        let mut damaged = bytes.to_vec();
        for (at, bit) in flips {
            let at = at.index(damaged.len());
            damaged[at] ^= 1 << bit;
        }
        for whole in [damaged.clone(), damaged[..cut.index(damaged.len())].to_vec()] {
            let mut fixed = whole.clone();
            if fixed.len() >= 4 {
                let length = fixed.len() as i32;
                fixed[..4].copy_from_slice(&length.to_le_bytes());
            }
            for bytes in [whole, fixed] {
                let bytes = Bytes::from(bytes);
                let _ = decode_reply(bytes.clone());
                if let Ok(message) = decode(bytes) {
                    for sequence in &message.sequences {
                        assert_eq!(message.documents(&sequence.id).flatten().count(), sequence.count);
                    }
                }
            }
        }
    }
}
