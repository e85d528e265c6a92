
≈

etcd.protoetcdserverpb"Ö
ResponseHeader

cluster_id (R	clusterId
	member_id (RmemberId
revision (Rrevision
	raft_term (RraftTerm"S
RangeRequest
key (Rkey
	range_end (RrangeEnd
limit (Rlimit"ò
KeyValue
key (Rkey'
create_revision (RcreateRevision!
mod_revision (RmodRevision
version (Rversion
value (Rvalue"ô
RangeResponse4
header (2.etcdserverpb.ResponseHeaderRheader(
kvs (2.etcdserverpb.KeyValueRkvs
more (Rmore
count (Rcount"
StatusRequest"ê
StatusResponse4
header (2.etcdserverpb.ResponseHeaderRheader
version (	Rversion
dbSize (RdbSize
leader (Rleader2F
KV@
Range.etcdserverpb.RangeRequest.etcdserverpb.RangeResponse2R
MaintenanceC
Status.etcdserverpb.StatusRequest.etcdserverpb.StatusResponse2M
WatchD
Watch.etcdserverpb.RangeRequest.etcdserverpb.RangeResponse(0bproto3