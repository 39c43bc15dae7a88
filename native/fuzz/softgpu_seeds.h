/* softgpu_seeds.h - PTX to start from: most kinds of statements in few lines. */
#ifndef FARBUS_FUZZ_SOFTGPU_SEEDS_H
#define FARBUS_FUZZ_SOFTGPU_SEEDS_H

#define PTX_HEADER ".version 8.0\n.target sm_80\n.address_size 64\n"

static const char ptx_memory[] = PTX_HEADER
	".visible .global .align 8 .u64 table[4] = {1, 2, generic(table), 4};\n"
	".const .align 4 .f32 numbers[2] = {0f3F800000, 0f40000000};\n"
	".extern .shared .align 16 .b8 dynamic[];\n"
	".visible .entry k(.param .u64 p, .param .align 8 .b8 s[24])\n.maxntid 64, 1, 1\n{\n"
	".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<4>; .reg .b16 %h<4>;\n"
	".shared .align 4 .b8 tile[128]; .local .align 8 .b8 depot[32];\n"
	"ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd2, %rd1; mov.u32 %r1, %tid.x;\n"
	"mad.wide.u32 %rd3, %r1, 16, %rd2; ld.global.v4.u32 {%r2, %r3, %r4, _}, [%rd3+16];\n"
	"ld.volatile.global.v2.u64 {%rd4, %rd5}, [%rd3]; st.shared.u32 [tile+4], %r2;\n"
	"st.local.u64 [depot+8], %rd4; atom.global.add.u32 %r5, [%rd3], 1; ld.const.f32 %f1, [numbers+4];\n"
	"atom.shared.cas.b32 %r6, [tile], %r1, %r2; red.global.max.s32 [%rd3], %r5;\n"
	"mov.b64 {%r7, %r8}, %rd4; ld.shared.u8 %h1, [dynamic]; membar.gl; ret;\n}\n";
static const char ptx_control[] = PTX_HEADER
	".func (.param .b32 out) f(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a];\n"
	"add.s32 %r2, %r1, 1; st.param.b32 [out], %r2; ret; }\n"
	".visible .entry k(.param .u32 n)\n{\n.reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p<4>;\n"
	"ld.param.u32 %r1, [n]; setp.lt.and.u32 %p1|%p2, %r1, 7, !%p3; @!%p1 bra OUT;\n"
	"AGAIN: { .param .b32 a; .param .b32 o; st.param.b32 [a], %r1; call.uni (o), f, (a);\n"
	"ld.param.b32 %r2, [o]; }\n"
	"shfl.sync.bfly.b32 %r3|%p2, %r2, 16, 31, -1; vote.sync.ballot.b32 %r4, %p2, 0xffffffff;\n"
	"bar.sync 0; barrier.cta.red.popc.u32 %r5, 1, 32, %p1; selp.b32 %r6, %r3, %r4, %p1;\n"
	"ts: .branchtargets AGAIN, OUT; brx.idx %r6, ts;\nOUT: exit;\n}\n";
static const char ptx_arithmetic[] = PTX_HEADER
	".visible .entry k()\n{\n.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<19>; .reg .f64 %d<4>;\n"
	".reg .pred %p<4>; .reg .b16 %h<4>;\n"
	"fma.rn.ftz.sat.f32 %f1, %f2, 0f3F800000, %f3; div.rn.f64 %d1, %d2, %d3; cvt.rzi.s32.f32 %r1, %f1;\n"
	"lop3.b32 %r2, %r1, %r3, %r4, 0x96; prmt.b32 %r3, %r2, %r1, 0x5410; bfe.u32 %r4, %r3, 4, 8;\n"
	"add.cc.u32 %r5, %r1, %r2; addc.u32 %r6, %r3, %r4; mul.wide.s32 %rd1, %r5, -3;\n"
	"cvt.rn.f16x2.f32 %r7, %f1, %f2; fma.rn.f16x2 %r8, %r7, %r7, %r7; ex2.approx.ftz.f32 %f4, %f1;\n"
	"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f5, %f6, %f7, %f8}, {%r1, %r2}, {%r3},"
	" {%f9, %f10, %f11, %f12};\n"
	"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3]; ret;\n}\n";
static const char ptx_tensor[] = ".version 8.6\n.target sm_90\n.address_size 64\n"
	".visible .global .align 8 .u64 table[4];\n"
	".visible .entry k(.param .align 64 .b8 map[128], .param .u64 p)\n{\n"
	".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<4>; .reg .b16 %h<4>;\n"
	".shared .align 128 .b8 tile[256]; .shared .align 8 .b64 barrier; .local .align 8 .b8 depot[32];\n"
	"mov.b64 %rd1, map; mov.u32 %r1, barrier; ld.param.u64 %rd2, [p];\n"
	"tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [tile], 1, %r2;\n"
	"tensormap.replace.tile.rank.shared::cta.b1024.b32 [tile], 1;\n"
	"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd2], [tile], 128;\n"
	"fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128;\n"
	"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
	" [tile], [%rd1, {%r2, 3}], [%r1], %h1;\n"
	"cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [map, {%r2}], [tile];\n"
	"cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%rd2, {%r2, %r3, %r4}], [tile];\n"
	"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, %p1, 1, -1, 0, 1;\n"
	"wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.satfinite {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, %rd2, 1;\n"
	"wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"
	"and.b32 %r5, %r6, ~0x2 & (1 << 4 | -3) / 7; ld.global.u64 %rd3, table[%r1 + 1]; ld.global.u64 %rd4, table[2];\n"
	"mov.b64 %rd5, depot; cvt.u32.u64 %r7, %rd5; st.local.v2.b32 [%r7+8], {%r1, %r2}; cvta.local.u64 %rd6, %rd5;\n"
	"ret;\n}\n";
static const char ptx_cluster[] = ".version 8.8\n.target sm_100\n.address_size 64\n"
	".func (.param .b32 r) twin(.param .b32 a);\n"
	".func (.param .b32 r) f(.param .b32 a) { .reg .b32 %r<2>; ld.param.b32 %r1, [a];\n"
	"st.param.b32 [r], %r1; ret; }\n.alias twin, f;\n"
	".visible .entry k(.param .u64 p) .explicitcluster .reqnctapercluster 2, 1, 1\n{\n"
	".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<4>; .reg .b16 %h<4>;\n"
	".reg .b128 %q<3>; .shared .align 16 .b8 tile[256]; .shared .align 8 .b64 barrier[2];\n"
	"mov.u32 %r1, barrier; mbarrier.init.shared::cta.b64 [%r1], 1; mov.u32 %r2, %cluster_ctarank;\n"
	"barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
	"mapa.shared::cluster.u32 %r3, %r1, 1; st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
	".v2.s32 [%r3], {%r1, %r2}, [%r3];\n"
	"mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd1, [%r1], 16; ld.param.u64 %rd2, [p];\n"
	"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%rd2],"
	" 16, [%r1], %h1;\n"
	"WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0; @!%p1 bra WAIT;\n"
	"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd2], [tile], 64;\n"
	"cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; mapa.u64 %rd3, %rd2, %r2;\n"
	"ld.shared::cluster.u32 %r4, [%r3+4]; getctarank.shared::cluster.u32 %r5, %r3;\n"
	"ld.global.b128 %q1, [%rd2]; mov.b128 {%rd4, %rd5}, %q1; atom.cas.b128 %q2, [%rd2], %q1, %q1;\n"
	"red.global.v4.f32.add [%rd2], {%f1, %f2, %f3, %f4}; cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;\n"
	"cvt.rn.f16x2.e5m2x2 %r6, %h1; vabsdiff4.u32.u32.u32.add %r7, %r1, %r2, %r3;\n"
	"redux.sync.min.abs.NaN.f32 %f5, %f1, -1; elect.sync %r8|%p2, -1; ret;\n}\n";
static const char ptx_tensor_maps[] = ".version 8.8\n.target sm_100a\n.address_size 64\n"
	".visible .entry k(.param .align 64 .b8 map[128], .param .u64 p)\n{\n"
	".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %h<4>; .shared .align 128 .b8 tile[512];\n"
	".shared .align 8 .b64 barrier; mov.u32 %r1, tile; mov.u32 %r2, barrier; mov.b64 %rd1, map;\n"
	"ld.param.u64 %rd2, [p]; prefetch.tensormap [%rd1];\n"
	"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
	".L2::cache_hint [%r1], [%rd1, {%r3, -4}], [%r2], %h1, %rd3;\n"
	"cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes"
	" [tile], [map, {%r3, %r4, 0, %r5}], [barrier], {%h1, %h2};\n"
	"cp.async.bulk.tensor.2d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes"
	" [%r1+128], [%rd1, {%r3, %r4, %r5, %r6, %r7}], [%r2];\n"
	"cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r3}], [%r1];\n"
	"cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group"
	" [%rd2, {%r3, %r4, %r5, %r6, %r7}], [%r1];\n"
	"tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %rd2;\n"
	"tensormap.replace.tile.box_dim.global.b1024.b32 [%rd2], 1, %r3;\n"
	"tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r1], 3;\n"
	"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
	" [%rd2], [%r1], 128;\n"
	"fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128; ret;\n}\n";
static const char ptx_texture[] = PTX_HEADER
	".visible .entry k(.param .u64 t, .param .u64 s)\n{\n.reg .b32 %r<9>; .reg .b64 %rd<9>;\n"
	".reg .f32 %f<9>; .reg .b16 %h<5>; ld.param.u64 %rd1, [t]; ld.param.u64 %rd2, [s];\n"
	"tex.2d.v4.f32.f32 {%f1, %f2, %f3, _}, [%rd1, {%f4, %f5}];\n"
	"tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [%rd1, {%r5}];\n"
	"tex.level.a2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %f2, %f3, %f3}], %f5;\n"
	"tex.acube.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%r1, %f2, %f3, %f4}];\n"
	"tld4.g.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f5, %f6}]; txq.width.b32 %r1, [%rd1];\n"
	"suld.b.2d.v4.b8.trap {%h1, %h2, %h3, %h4}, [%rd2, {%r1, %r2}];\n"
	"sust.b.3d.v2.b32.clamp [%rd2, {%r1, %r2, %r3, %r3}], {%r4, %r5}; ret;\n}\n";

static const char ptx_warpgroup[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
	".visible .entry k()\n{\n.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<4>;\n"
	"wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4},"
	" %rd1, %rd2, %p1, 1, -1, 0, 1;\n"
	"wgmma.mma_async.sync.aligned.m64n16k32.f16.e4m3.e5m2 {%r5, %r6, %r7, %r8}, {%r1, %r2, %r3, %r4},"
	" %rd2, 1, 1, 1;\n"
	"@%p2 wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%r1, %r2, %r3, %r4}, %rd1, %rd2, %p1;\n"
	"wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; ret;\n}\n";

#define PTX_WORDS                                                                              \
	".global ", ".shared ", ".param ", ".local ", ".const ", ".reg ", ".entry ", ".func ",         \
	".align ", ".b8 ", ".b16 ", ".b32 ", ".b64 ", ".u32", ".s64", ".f32", ".f64", ".pred ",        \
	".v2", ".v4", ".volatile", ".sync", ".rn", ".sat", ".ftz", ".wide", ".cc", "%r1", "%rd1",      \
	"%f1", "%p1", "@%p1 ", "%tid.x", "%envreg2", "bra ", "call ", "ld.", "st.", "atom.", "mov.",  \
	"cvt.", "setp.", "wmma.", "mma.", "{", "}", "[", "]", "(", ")", ";", ",", "<", ">", "+", "-", \
	"0x", "0f3F800000", "0d", "/*", "*/", "//", "\n", ".loc 1 1 1", ".file 1 \"a\"", ".section ",  \
	".pragma \"nounroll\";", ".extern ", ".weak ", ".visible ", ".version 8.0\n", ".target sm_80",  \
	".alias ", ".b128 ", "%q1", "_", "mbarrier.", "cp.async.bulk.", "mapa.", "tex.", "suld.b.",   \
	"sust.b.", ".shared::cluster", ".reqnctapercluster ", "barrier.cluster.", "%cluster_ctarank", \
	".e4m3x2", ".multicast::cluster", ".mbarrier::complete_tx::bytes", "redux.sync.", "vadd2.",  \
	"wgmma.mma_async.", ".m64n16k16", "tensormap.replace.tile.", ".tensor.2d", "~", "table["

#endif
