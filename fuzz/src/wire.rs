//! One message: decoding as a client's and as a server's, and what is built from it.

use bson::rawdoc;
use bytes::{Bytes, BytesMut};
use mosaic::bsonx;
use mosaic::wire::{self, Compressor, Flags, Malformed, OutMsg, OutSequence};

use super::{class, commands};

pub fn fuzz_one(data: &[u8]) -> u64 {
    let frame = fitted(data);
    let reply = wire::decode_reply(frame.clone());
    let message = match wire::decode(frame) {
        Ok(message) => message,
        Err(Malformed::Close(error)) => return class((0, error.message().to_owned(), reply.is_ok())),
        Err(Malformed::Reply { style, quiet, error, .. }) => {
            let mut out = BytesMut::new();
            wire::reply(1, 2, &wire::error_reply(&error, style.form), style, &mut out);
            return class((1, error.code(), error.message().to_owned(), quiet, style.compressor.map(|c| c as u8)));
        }
    };
    bsonx::check(&message.body).expect("a message's body was checked");
    for sequence in &message.sequences {
        let mut count = 0;
        for doc in message.documents(&sequence.id) {
            bsonx::check(doc.expect("a sequence's documents are documents").as_bytes()).expect("and were checked");
            count += 1;
        }
        assert_eq!(count, sequence.count);
        assert_eq!(message.document_count(&sequence.id), Some(count));
    }
    let _ = message.document_count("documents");
    let _ = message.documents("updates").count();
    // Forwarded to a shard, it says the same.
    let mut out = BytesMut::new();
    let forwarded = OutMsg::forward(&message);
    forwarded.encode(3, &mut out);
    assert_eq!(out.len(), forwarded.encoded_len());
    let again = wire::decode(out.freeze()).expect("what is forwarded is well-formed");
    assert_eq!((&again.body, &again.sequences), (&message.body, &message.sequences));
    // Compressed, it says the same again.
    let compressor = [Compressor::Noop, Compressor::Snappy, Compressor::Zlib, Compressor::Zstd][data.len() % 4];
    let mut out = BytesMut::new();
    forwarded.encode_compressed(3, compressor, &mut out);
    let again = wire::decode(out.freeze()).expect("what is compressed is well-formed");
    assert_eq!((&again.body, &again.sequences), (&message.body, &message.sequences));
    assert_eq!(again.compressor.is_some(), again.compressor == Some(compressor));
    // As a reply, the body arrives as it was.
    let mut out = BytesMut::new();
    wire::reply(1, 2, &message.body, wire::ReplyStyle::for_request(&message), &mut out);
    if !message.legacy {
        let reply = wire::decode_reply(out.freeze()).expect("a reply is well-formed");
        assert_eq!(reply.body, message.body);
    }
    class((
        2,
        message.flags.0 & 0x1_0003,
        message.sequences.len().min(3),
        message.legacy,
        message.compressor.map(|c| c as u8),
        message.command().is_some(),
    ))
}

/// Makes the lengths and the checksum fit where bytes say so, so that mutations get further than the first look.
fn fitted(data: &[u8]) -> Bytes {
    let mut bytes = data.to_vec();
    if bytes.len() >= 16 && bytes[3] & 0x40 == 0 {
        let length = bytes.len() as i32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[8..12].fill(0);
        let checksummed = bytes[12..16] == 2013_i32.to_le_bytes() && bytes.len() >= 24 && bytes[16] & 1 != 0;
        if checksummed && bytes[17] & 0x80 == 0 {
            let end = bytes.len() - 4;
            let crc = crc(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
        }
    }
    bytes.into()
}

/// CRC-32C, bit by bit.
fn crc(data: &[u8]) -> u32 {
    !data.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & 0_u32.wrapping_sub(crc & 1)))
    })
}

pub fn seeds() -> Vec<Vec<u8>> {
    let docs: Vec<u8> = (0..3).flat_map(|i| rawdoc! { "_id": i, "x": "y" }.into_bytes()).collect();
    let insert = OutMsg {
        flags: Flags::NONE,
        body: rawdoc! { "insert": "c", "ordered": true, "$db": "d" }.into_bytes().into(),
        sequences: [OutSequence { id: "documents".into(), docs: [Bytes::from(docs)].into_iter().collect() }]
            .into_iter()
            .collect(),
    };
    let find = OutMsg::from_doc(rawdoc! { "find": "c", "filter": { "a": [1, { "b": 2 }] }, "$db": "d" });
    let mut seeds = Vec::new();
    let documents = commands::commands().into_iter().chain(commands::replies());
    for message in [insert, find].into_iter().chain(documents.map(OutMsg::from_doc)) {
        let mut out = BytesMut::new();
        message.encode(7, &mut out);
        seeds.push(out.to_vec());
        let mut checked = out.to_vec();
        checked[16] |= 1;
        checked.extend_from_slice(&[0; 4]);
        seeds.push(checked);
        for compressor in [Compressor::Noop, Compressor::Snappy, Compressor::Zlib, Compressor::Zstd] {
            let mut out = BytesMut::new();
            message.encode_compressed(7, compressor, &mut out);
            seeds.push(out.to_vec());
        }
    }
    let mut query = Vec::new();
    query.extend_from_slice(&[0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    query.extend_from_slice(&2004_i32.to_le_bytes());
    query.extend_from_slice(&4_i32.to_le_bytes());
    query.extend_from_slice(b"admin.$cmd\0");
    query.extend_from_slice(&0_i32.to_le_bytes());
    query.extend_from_slice(&(-1_i32).to_le_bytes());
    query.extend_from_slice(rawdoc! { "$query": { "isMaster": 1 } }.as_bytes());
    seeds.push(query);
    seeds
}
