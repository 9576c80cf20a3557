//! Raw BSON: the structural check, walking by offset, editing.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mosaic::bsonx::{self, Writer};

use super::{class, commands};

pub fn fuzz_one(data: &[u8]) -> u64 {
    let walked = bsonx::fields(data).count();
    let found = bsonx::find_path(data, &["a", "b"]).is_some();
    let mut patched = data.to_vec();
    let set = bsonx::set_int64(&mut patched, &["cursor", "id"], -1);
    assert_eq!(patched.len(), data.len());
    if let Err(error) = bsonx::check(data) {
        return class((error.code(), error.message().to_owned(), walked.min(8), found, set));
    }
    let doc = RawDocument::from_bytes(data).expect("a checked document has the right length");
    // Every field is there, in the library's eyes too, up to the first name that is not UTF-8.
    let theirs = doc.iter_elements().map_while(Result::ok).count();
    assert!(theirs <= walked);
    if bsonx::fields(data).all(|f| std::str::from_utf8(f.key).is_ok()) {
        let regexes_are_utf8 = bsonx::fields(data)
            .filter(|f| f.kind == bsonx::kind::REGEX)
            .all(|f| std::str::from_utf8(&data[f.range()]).is_ok());
        assert!(theirs == walked || !regexes_are_utf8, "{theirs} of {walked}");
    }
    against_library(data, doc, set.then_some(&patched));
    let last = bsonx::fields(data).last().map_or(4, |f| f.end);
    assert_eq!(last, data.len() - 1, "the walk ends at the end");
    let kinds = walk(doc, 0);
    bsonx::check(&patched).expect("patching keeps the structure");
    for drop in 0..walked.min(4) {
        let name = bsonx::fields(data).nth(drop).map(|f| f.key).unwrap_or_default();
        let mut copy = Writer::copy_without(data, |key| key == name);
        copy.int32("added", 1);
        let copy = copy.finish();
        bsonx::check(&copy).expect("an edited copy is well-formed");
        let kept = bsonx::fields(data).filter(|f| f.key != name).count();
        assert_eq!(bsonx::fields(&copy).count(), kept + 1);
    }
    assert_eq!(Writer::copy(data).finish(), data);
    class((kinds, walked.min(8), found, set))
}

/// Names, types, bytes and looked up fields as the library has them, as far as it reads the document.
fn against_library(data: &[u8], doc: &RawDocument, patched: Option<&Vec<u8>>) {
    for (mine, theirs) in bsonx::fields(data).zip(doc.iter_elements().map_while(Result::ok)) {
        assert_eq!((mine.key, mine.kind), (theirs.key().as_str().as_bytes(), theirs.element_type() as u8));
        let Ok(value) = theirs.value() else { continue };
        let mut alone = RawDocumentBuf::new();
        alone.append(theirs.key(), value);
        let old_or_odd = matches!(value, RawBsonRef::Binary(_) | RawBsonRef::Boolean(_));
        assert!(
            old_or_odd || alone.as_bytes()[4..alone.as_bytes().len() - 1] == data[mine.whole()],
            "{:?}",
            theirs.key()
        );
    }
    let nested = bsonx::get(doc, "a").and_then(|a| a.as_document()).and_then(|a| bsonx::get(a, "b"));
    if let Some(value) = nested {
        let mine = bsonx::find_path(data, &["a", "b"]).expect("the library found it");
        assert_eq!(mine.kind, value.element_type() as u8);
    }
    if let Some(patched) = patched {
        let id = bsonx::find_path(patched, &["cursor", "id"]).expect("it was set");
        assert_eq!((id.kind, bsonx::int64(patched, id.value)), (bsonx::kind::INT64, Some(-1)));
        let other = data.iter().zip(patched).enumerate().filter(|(i, (x, y))| x != y && !id.range().contains(i));
        assert_eq!(other.count(), 0, "nothing else is touched");
    }
}

/// Reads every value through the library, which must not panic; gives the set of types that were there.
fn walk(doc: &RawDocument, depth: usize) -> u64 {
    let mut kinds = 1 << (depth.min(20) + 32);
    for element in doc.iter_elements().map_while(Result::ok) {
        kinds |= 1 << (u64::from(element.element_type() as u8) % 32);
        match element.value() {
            Ok(RawBsonRef::Document(inner)) => kinds |= walk(inner, depth + 1),
            Ok(RawBsonRef::Array(inner)) => {
                let inner = RawDocument::from_bytes(inner.as_bytes()).expect("an array is a document");
                kinds |= walk(inner, depth + 1);
            }
            _ => {}
        }
    }
    kinds
}

pub fn seeds() -> Vec<Vec<u8>> {
    use bson::{Binary, Bson, JavaScriptCodeWithScope, Regex, Timestamp, spec::BinarySubtype};
    let everything = doc! {
        "double": 1.5, "string": "text", "a": { "b": { "c": [] } }, "array": [1, { "x": "y" }, [2]],
        "bin": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 3] },
        "old": Binary { subtype: BinarySubtype::BinaryOld, bytes: vec![1, 2] },
        "undef": Bson::Undefined, "oid": bson::oid::ObjectId::from_bytes([7; 12]), "yes": true,
        "date": bson::DateTime::from_millis(77), "null": Bson::Null,
        "re": Regex { pattern: "a+".try_into().expect("no NUL"), options: "i".try_into().expect("no NUL") },
        "code": Bson::JavaScriptCode("f()".into()), "symbol": Bson::Symbol("s".into()),
        "cws": JavaScriptCodeWithScope { code: "g()".into(), scope: doc! { "v": 1 } },
        "int": 5, "ts": Timestamp { time: 1, increment: 2 }, "long": 6_i64, "min": Bson::MinKey, "max": Bson::MaxKey,
        "cursor": { "id": 9_i64, "ns": "a.b", "firstBatch": [{ "_id": 1 }] },
    };
    let mut deep = doc! {};
    for _ in 0..199 {
        deep = doc! { "a": deep };
    }
    let all = [doc! {}, doc! { "": 1 }, everything, deep];
    let real = [commands::commands(), commands::replies(), commands::filters()].concat();
    all.iter().map(|d| d.to_vec().expect("encodes")).chain(real.into_iter().map(|d| d.into_bytes())).collect()
}
