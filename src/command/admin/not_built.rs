//! Commands of mongos that are known but not built. They answer CommandNotSupported with the reason, so that nobody
//! takes silence or "no such command" for a typing error.

use crate::error::{Code, Error};

/// The answer to a command that is not in the table.
pub fn unknown(name: &str) -> Error {
    match reason(name) {
        Some(reason) => Error::new(Code::CommandNotSupported, format!("{name} is not supported: {reason}")),
        None => Error::new(Code::CommandNotFound, format!("no such command: '{name}'")),
    }
}

/// Why a known command is not there; `None` for names that mean nothing to the router.
pub fn reason(name: &str) -> Option<&'static str> {
    ROWS.iter().find(|(names, _)| names.contains(&name)).map(|(_, reason)| *reason)
}

/// Names, and why they are not there.
const ROWS: &[(&[&str], &str)] = &[
    (
        &[
            "createUser",
            "updateUser",
            "dropUser",
            "dropAllUsersFromDatabase",
            "usersInfo",
            "grantRolesToUser",
            "revokeRolesFromUser",
            "createRole",
            "updateRole",
            "dropRole",
            "dropAllRolesFromDatabase",
            "rolesInfo",
            "grantPrivilegesToRole",
            "revokePrivilegesFromRole",
            "grantRolesToRole",
            "revokeRolesFromRole",
        ],
        "this router does not authenticate clients yet, so it has no users and no roles; protect it by its network",
    ),
    (&["getnonce", "copydbgetnonce"], "MONGODB-CR is gone; this router does not authenticate clients yet"),
    (
        &[
            "moveChunk",
            "moveRange",
            "mergeAllChunksOnShard",
            "movePrimary",
            "cleanupOrphaned",
            "clearJumboFlag",
            "startShardDraining",
            "stopShardDraining",
            "shardDrainingStatus",
            "commitShardRemoval",
            "balancerCollectionStatus",
            "configureCollectionBalancing",
            "setAllowMigrations",
            "addShardToZone",
            "removeShardFromZone",
            "updateZoneKeyRange",
        ],
        "chunks are not moved and balanced yet",
    ),
    (
        &[
            "reshardCollection",
            "abortReshardCollection",
            "commitReshardCollection",
            "cleanupReshardCollection",
            "moveCollection",
            "abortMoveCollection",
            "unshardCollection",
            "abortUnshardCollection",
            "rewriteCollection",
        ],
        "resharding is not built yet",
    ),
    (
        &["analyzeShardKey", "configureQueryAnalyzer", "checkMetadataConsistency"],
        "analysing shard keys and metadata is not built yet",
    ),
    (
        &["setFeatureCompatibilityVersion"],
        "the router stores no data; set the feature compatibility version on every shard directly",
    ),
    (&["setUserWriteBlockMode", "getUserWriteBlockMode"], "blocking users' writes is not built yet"),
    (
        &["setClusterParameter", "getClusterParameter"],
        "cluster parameters are not built yet; set parameters on the shards directly",
    ),
    (
        &[
            "transitionFromDedicatedConfigServer",
            "transitionToDedicatedConfigServer",
            "getTransitionToDedicatedConfigServerStatus",
        ],
        "the catalog is never kept on a shard",
    ),
    (&["bulkWrite"], "bulkWrite over several namespaces came with MongoDB 8.0; use insert, update and delete"),
    (&["mapReduce", "mapreduce"], "mapReduce is deprecated and not built; use an aggregation pipeline"),
    (&["rotateCertificates"], "this router does not serve TLS yet"),
    (&["setAuditConfig", "getAuditConfig", "logApplicationMessage"], "there is no auditing"),
    (&["startRecordingTraffic", "stopRecordingTraffic"], "traffic recording is not built; use a packet capture"),
    (
        &[
            "replSetInitiate",
            "replSetReconfig",
            "replSetStepDown",
            "replSetStepUp",
            "replSetFreeze",
            "replSetMaintenance",
            "replSetSyncFrom",
            "replSetGetConfig",
            "replSetGetRBID",
            "replSetResizeOplog",
        ],
        "a router is not a replica set; connect to the shard itself",
    ),
    (&["applyOps", "doTxn", "godinsert", "resync"], "not allowed through mongos"),
    (&["reIndex"], "it needs a standalone mongod; drop and create the index instead"),
    (
        &["top", "dbHash", "dbhash", "driverOIDTest", "getCmdLineOptsOnShards", "lockInfo", "connPoolSync"],
        "it concerns one server; connect to the shard itself",
    ),
    (
        &["createSearchIndexes", "updateSearchIndex", "dropSearchIndex", "listSearchIndexes"],
        "search indexes need a search service that plain mongods do not have",
    ),
    (&["setFreeMonitoring"], "there is no free monitoring"),
    (&["setQuerySettings", "removeQuerySettings"], "query settings came with MongoDB 8.0"),
    (&["shutdown"], "stop the router's process with SIGTERM instead"),
    (&["netstat", "multicast", "setIndexCommitQuorum", "validateDBMetadata"], "not built yet"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_once() {
        let mut seen = std::collections::HashSet::new();
        for name in ROWS.iter().flat_map(|(names, _)| *names) {
            assert!(seen.insert(name), "{name} stands twice");
            assert!(crate::command::lookup(name).is_none(), "{name} is built");
        }
    }

    #[test]
    fn answers() {
        let e = unknown("createUser");
        assert!(e.is(Code::CommandNotSupported) && e.message().contains("authenticate"), "{e}");
        let e = unknown("nosuch");
        assert!(e.is(Code::CommandNotFound), "{e}");
        assert_eq!(e.message(), "no such command: 'nosuch'");
    }
}
