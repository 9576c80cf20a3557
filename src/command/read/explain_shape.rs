//! The replies of explain, assembled from what the shards explain. Pure.

use bson::RawDocument;

use super::count::number;
use crate::bsonx::{self, Writer, kind};
use crate::catalog::model::ShardId;

/// How much an explain tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    QueryPlanner,
    ExecutionStats,
    AllPlans,
}

impl Verbosity {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "queryPlanner" => Verbosity::QueryPlanner,
            "executionStats" => Verbosity::ExecutionStats,
            "allPlansExecution" => Verbosity::AllPlans,
            _ => return None,
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Verbosity::QueryPlanner => "queryPlanner",
            Verbosity::ExecutionStats => "executionStats",
            Verbosity::AllPlans => "allPlansExecution",
        }
    }
}

/// What one shard explained.
#[derive(Clone, Copy, Debug)]
pub struct ShardPlan<'a> {
    pub shard: &'a ShardId,
    /// The shard's connection string, and the member that answered.
    pub connection: &'a str,
    pub host: &'a str,
    pub reply: &'a RawDocument,
}

/// `queryPlanner` and, unless only that was asked, `executionStats`, under a stage that stands for the router.
pub fn query(out: &mut Writer, stage: &str, plans: &[ShardPlan<'_>], verbosity: Verbosity, millis: u64) {
    out.open_doc("queryPlanner").int32("mongosPlannerVersion", 1).open_doc("winningPlan").str("stage", stage);
    out.open_array("shards");
    for (i, plan) in plans.iter().enumerate() {
        out.open_doc(&i.to_string());
        copy(out, plan.reply, "explainVersion");
        out.str("shardName", plan.shard).str("connectionString", plan.connection);
        copy(out, plan.reply, "serverInfo");
        inline(out, plan.reply, "queryPlanner", &[]);
        out.close();
    }
    out.close().close().close();
    if verbosity == Verbosity::QueryPlanner {
        return;
    }
    out.open_doc("executionStats");
    sums(out, plans, millis);
    out.open_doc("executionStages").str("stage", stage);
    sums(out, plans, millis);
    number(out, "totalChildMillis", sum(plans, "executionTimeMillis"));
    out.open_array("shards");
    for (i, plan) in plans.iter().enumerate() {
        out.open_doc(&i.to_string()).str("shardName", plan.shard);
        inline(out, plan.reply, "executionStats", &[b"allPlansExecution"]);
        out.close();
    }
    out.close().close();
    if verbosity == Verbosity::AllPlans {
        out.open_array("allPlansExecution");
        for (i, plan) in plans.iter().enumerate() {
            out.open_doc(&i.to_string()).str("shardName", plan.shard);
            let all = bsonx::doc(plan.reply, "executionStats").and_then(|s| bsonx::array(s, "allPlansExecution"));
            match all {
                Some(all) => out.raw("allPlans", kind::ARRAY, all.as_bytes()),
                None => out.open_array("allPlans").close(),
            };
            out.close();
        }
        out.close();
    }
    out.close();
}

/// The shards' part of an aggregation's explain: `shards: {id: {host, queryPlanner | stages, …}}`.
pub fn shards(out: &mut Writer, plans: &[ShardPlan<'_>]) {
    out.open_doc("shards");
    for plan in plans {
        out.open_doc(plan.shard).str("host", plan.host);
        for field in ["explainVersion", "queryPlanner", "executionStats", "stages"] {
            copy(out, plan.reply, field);
        }
        out.close();
    }
    out.close();
}

fn sums(out: &mut Writer, plans: &[ShardPlan<'_>], millis: u64) {
    number(out, "nReturned", sum(plans, "nReturned"));
    number(out, "executionTimeMillis", i64::try_from(millis).unwrap_or(i64::MAX));
    number(out, "totalKeysExamined", sum(plans, "totalKeysExamined"));
    number(out, "totalDocsExamined", sum(plans, "totalDocsExamined"));
}

fn sum(plans: &[ShardPlan<'_>], field: &str) -> i64 {
    let of = |plan: &ShardPlan<'_>| bsonx::int(bsonx::doc(plan.reply, "executionStats")?, field);
    plans.iter().filter_map(of).fold(0, i64::saturating_add)
}

/// Copies one field as it is.
fn copy(out: &mut Writer, from: &RawDocument, field: &str) {
    if let Some(found) = bsonx::find(from.as_bytes(), field) {
        out.raw_fields(&from.as_bytes()[found.whole()]);
    }
}

/// Copies the fields of a sub-document.
fn inline(out: &mut Writer, from: &RawDocument, field: &str, without: &[&[u8]]) {
    if let Some(doc) = bsonx::doc(from, field) {
        let rest = Writer::copy_without(doc.as_bytes(), |key| without.contains(&key)).finish();
        out.raw_fields(&rest[4..rest.len() - 1]);
    }
}

/// `serverParameters` as servers of this age show them: limits that the router passes on to its shards.
pub fn server_parameters(out: &mut Writer) {
    const MIB100: i32 = 104_857_600;
    out.open_doc("serverParameters")
        .int32("internalQueryFacetBufferSizeBytes", MIB100)
        .int32("internalQueryFacetMaxOutputDocSizeBytes", MIB100)
        .int32("internalLookupStageIntermediateDocumentMaxSizeBytes", MIB100)
        .int32("internalDocumentSourceGroupMaxMemoryBytes", MIB100)
        .int32("internalQueryMaxBlockingSortMemoryUsageBytes", MIB100)
        .int32("internalQueryProhibitBlockingMergeOnMongoS", 0)
        .int32("internalQueryMaxAddToSetBytes", MIB100)
        .int32("internalDocumentSourceSetWindowFieldsMaxMemoryBytes", MIB100)
        .close();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use bson::{Document, doc, rawdoc};

    fn written(write: impl FnOnce(&mut Writer)) -> Document {
        let mut out = Writer::new();
        write(&mut out);
        let bytes = out.finish();
        bsonx::check(&bytes).unwrap();
        Document::from_reader(&*bytes).unwrap()
    }

    fn explained(n: i32) -> bson::RawDocumentBuf {
        rawdoc! {
            "explainVersion": "1",
            "queryPlanner": { "namespace": "d.c", "winningPlan": { "stage": "COLLSCAN" }, "rejectedPlans": [] },
            "executionStats": {
                "executionSuccess": true, "nReturned": n, "executionTimeMillis": 3, "totalKeysExamined": 2 * n,
                "totalDocsExamined": n, "executionStages": { "stage": "COLLSCAN" }, "allPlansExecution": [],
            },
            "serverInfo": { "host": "h" },
            "ok": 1.0,
        }
    }

    #[test]
    fn sums_over_shards() {
        let (a, b): (ShardId, ShardId) = ("a".into(), "b".into());
        let (one, two) = (explained(5), explained(7));
        let plans = [
            ShardPlan { shard: &a, connection: "a/h:1", host: "h:1", reply: &one },
            ShardPlan { shard: &b, connection: "b/h:2", host: "h:2", reply: &two },
        ];
        let got = written(|out| query(out, "SHARD_MERGE", &plans, Verbosity::AllPlans, 9));
        let shard = |name: &str, connection: &str| {
            doc! {
                "explainVersion": "1", "shardName": name, "connectionString": connection, "serverInfo": { "host": "h" },
                "namespace": "d.c", "winningPlan": { "stage": "COLLSCAN" }, "rejectedPlans": [],
            }
        };
        let stats = |name: &str, n: i32| {
            doc! {
                "shardName": name, "executionSuccess": true, "nReturned": n, "executionTimeMillis": 3,
                "totalKeysExamined": 2 * n, "totalDocsExamined": n, "executionStages": { "stage": "COLLSCAN" },
            }
        };
        let wanted = doc! {
            "queryPlanner": { "mongosPlannerVersion": 1, "winningPlan": {
                "stage": "SHARD_MERGE", "shards": [shard("a", "a/h:1"), shard("b", "b/h:2")],
            } },
            "executionStats": {
                "nReturned": 12, "executionTimeMillis": 9, "totalKeysExamined": 24, "totalDocsExamined": 12,
                "executionStages": {
                    "stage": "SHARD_MERGE", "nReturned": 12, "executionTimeMillis": 9, "totalKeysExamined": 24,
                    "totalDocsExamined": 12, "totalChildMillis": 6, "shards": [stats("a", 5), stats("b", 7)],
                },
                "allPlansExecution": [{ "shardName": "a", "allPlans": [] }, { "shardName": "b", "allPlans": [] }],
            },
        };
        assert_eq!(got, wanted);
        let planner = written(|out| query(out, "SINGLE_SHARD", &plans[..1], Verbosity::QueryPlanner, 9));
        assert_eq!(planner.keys().collect::<Vec<_>>(), ["queryPlanner"]);
    }

    #[test]
    fn aggregations_name_their_shards() {
        let a: ShardId = "a".into();
        let reply = rawdoc! { "explainVersion": "1", "stages": [{ "$cursor": {} }], "ok": 1.0, "command": {} };
        let plans = [ShardPlan { shard: &a, connection: "a/h:1", host: "h:1", reply: &reply }];
        let wanted =
            doc! { "shards": { "a": { "host": "h:1", "explainVersion": "1", "stages": [{ "$cursor": {} }] } } };
        assert_eq!(written(|out| shards(out, &plans)), wanted);
        assert!(Verbosity::parse("allPlansExecution").is_some_and(|v| v > Verbosity::ExecutionStats));
        assert_eq!(Verbosity::parse("foo"), None);
    }
}
